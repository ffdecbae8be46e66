#include "train/formats/hugging_face.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "core/dtype.h"
#include "core/io/log.h"
#include "train/formats/exported.h"

namespace lathe {
namespace {

constexpr uint64_t most_config = uint64_t{16} << 20;

/// Returns the model family of a folder's config.json, and the corresponding keys of [model].
std::pair<const Family*, ModelKeys> read_config(const fs::path& folder, int64_t block_size,
                                                const std::vector<std::string>& ignored) {
  const std::string where = (folder / "config.json").string();
  if (!fs::is_directory(folder))
    fail(Exit::usage, folder.string(),
         " is not a folder; give a folder with a config.json, or a GGUF file");
  if (!fs::exists(folder / "config.json"))
    fail(Exit::checkpoint, folder.string(),
         " has no config.json, so it is not a Hugging Face folder",
         fs::exists(folder / "model.gguf") ? "; give its model.gguf" : "");

  Json json = parse_json(read_file(where, Exit::checkpoint, most_config), where, Exit::checkpoint);
  const Family& family = family_of(json, where);
  ConfigKeys keys(std::move(json), where);
  pass_common_keys(keys);
  ModelKeys values = family.read(keys, block_size);
  for (const std::string& key : ignored) keys.ignore(key);
  // A key that was not read may change what the model computes, so reject the file.
  keys.finish();
  return {&family, std::move(values)};
}

bool is_weight(const std::string& dtype) {
  return dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

std::string without(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

}  // namespace

HuggingFaceFolder::HuggingFaceFolder(const fs::path& folder, int64_t block_size,
                                     const std::vector<std::string>& ignored)
    : folder_(folder), files_([&] {
        const auto [family, values] = read_config(folder, block_size, ignored);
        family_ = family;
        set_model(family->kind, values, (folder / "config.json").string());
        return TensorFiles(folder);
      }()) {
  check_tensors();
}

HuggingFaceFolder::Source HuggingFaceFolder::source_of(const NamedParameter& p) const {
  const auto [rule, block] = rule_of(*family_, p.path);
  LATHE_CHECK(rule != nullptr, "the family ", family_->model_type, " has no rule for ", p.path);
  const std::string name = with_block(rule->theirs, block), bare = without(name, family_->prefix);
  return {.name = files_.find(name) == nullptr && files_.find(bare) != nullptr ? bare : name,
          .transposed = rule->transposed,
          .shift = rule->shift};
}

void HuggingFaceFolder::check_tensors() const {
  std::set<std::string> used;
  for (const NamedParameter& p : parameters()) {
    const Source source = source_of(p);
    const TensorEntry* entry = files_.find(source.name);
    if (entry == nullptr)
      fail(Exit::checkpoint, folder_.string(), " lacks the tensor \"", source.name,
           "\" that its config.json requires");
    used.insert(source.name);

    const std::string where =
        str(files_.file_of(source.name).string(), ": tensor \"", source.name, "\"");
    if (!is_weight(entry->dtype))
      fail(Exit::checkpoint, where, " is ", entry->dtype, "; this build reads F32, F16 and BF16");

    std::vector<int64_t> wanted = p.parameter.sizes().vec();
    if (source.transposed) std::reverse(wanted.begin(), wanted.end());
    // A model with a shorter context uses only the first rows of the position embeddings.
    const bool cut =
        p.path == "positions.weight" && entry->shape.size() == 2 && entry->shape[0] > wanted[0];
    if (cut) wanted[0] = entry->shape[0];

    if (entry->shape != wanted) {
      fail(Exit::checkpoint, where, " has the shape ", describe(at::IntArrayRef(entry->shape)),
           ", but it must be ", describe(at::IntArrayRef(wanted)), " according to config.json");
    }
  }

  // Each remaining tensor must be a known buffer, or a head that is equal to the tied embeddings.
  const bool tied = *model().own.find<bool>("tie_weights");
  for (const std::string& name : files_.names()) {
    if (used.contains(name)) continue;
    const auto is_buffer = [&](const std::string& pattern) {
      return is_named(without(name, family_->prefix), pattern);
    };
    if (std::any_of(family_->buffers.begin(), family_->buffers.end(), is_buffer)) continue;
    const std::string where = str(files_.file_of(name).string(), ": tensor \"", name, "\"");
    if (!tied || name != "lm_head.weight")
      fail(Exit::checkpoint, where, " does not belong to the model that config.json describes");

    const TensorEntry &head = *files_.find(name),
                      &tokens = *files_.find(source_of(parameters()[0]).name);
    if (head.shape != tokens.shape || head.dtype != tokens.dtype ||
        std::memcmp(head.bytes.data(), tokens.bytes.data(), head.bytes.size()) != 0)
      fail(Exit::checkpoint, where, " differs from \"", tokens.name,
           "\", but config.json ties them (tie_word_embeddings)");
  }
}

at::ScalarType HuggingFaceFolder::dtype(const NamedParameter& p) const {
  return *dtype_from_safetensors(files_.find(source_of(p).name)->dtype);
}

at::Tensor HuggingFaceFolder::tensor(const NamedParameter& p) const {
  const Source source = source_of(p);
  const TensorEntry& entry = *files_.find(source.name);
  // Release the previous tensor's pages of the file; otherwise all tensors' pages would add up to a
  // second copy of the model in memory.
  if (last_ != nullptr) files_.release(*last_);
  last_ = &entry;

  at::Tensor t = tensor_of(entry);
  check_finite(t, str(files_.file_of(source.name).string(), ": tensor \"", source.name, "\""));

  if (source.transposed) {
    t = t.t().contiguous();
    files_.release(entry);
  }
  if (source.shift != 0) t = t.to(at::kFloat) - source.shift;
  // A model with a shorter context uses only the first rows of the position embeddings.
  return t.dim() == 2 ? t.slice(0, 0, p.parameter.size(0)) : t;
}

Tokenizer HuggingFaceFolder::tokenizer() const {
  const Tokenizer tokenizer = Tokenizer::bpe(folder_);
  check_vocabulary(tokenizer, folder_, model());
  return tokenizer;
}

TokenizerSettings HuggingFaceFolder::settings() const { return read_settings(folder_); }

fs::path import_hugging_face(const ImportOptions& o) {
  return import_model(HuggingFaceFolder(o.folder, o.block_size, o.ignored_keys), o);
}

void write_tokenizer(const Tokenizer& tokenizer, const fs::path& folder, Json& config) {
  const BPEDefinition& d = tokenizer.bpe()->definition();
  const Json whole = bpe_to_json(d);
  write_file_durably(folder / "tokenizer.json", json_text(whole, 1) + "\n");
  Json settings{
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"model_max_length",
       config.contains("n_positions") ? config["n_positions"] : config["max_position_embeddings"]}};

  const BoundaryTokens marks = tokenizer.marks();
  for (const auto& [key, id] :
       {std::pair("bos_token", marks.begin), {"eos_token", marks.end}, {"pad_token", marks.pad}}) {
    if (id < 0) continue;
    settings[key] = d.tokens[static_cast<size_t>(id)];
    // The caller writes config.json after this function returns.
    config[str(key, "_id")] = id;
  }
  if (const auto& ends = tokenizer.settings().config_end_ids; !ends.empty())
    config["eos_token_id"] = ends;
  if (std::ranges::find(d.special, "<unk>", &SpecialToken::text) != d.special.end())
    settings["unk_token"] = "<unk>";
  write_settings(tokenizer.settings(), folder, settings);
  write_file_durably(folder / "tokenizer_config.json", json_text(settings, 1) + "\n");

  // vocab.json and merges.txt can express only tokenizers with GPT-2's pattern and default
  // settings.
  if (d.patterns != std::vector<std::string>{gpt2_pattern} || d.nfc || d.whole_pieces ||
      !d.byte_tokens.empty())
    return;

  write_file_durably(folder / "vocab.json", json_text(whole["model"]["vocab"]) + "\n");
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : whole["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  write_file_durably(folder / "merges.txt", merges);
}

void export_hugging_face(const ExportOptions& o) {
  const ExportedModel m(o);
  Json head{{"model_type", m.family->model_type},
            {"architectures", {m.family->architecture}},
            {"torch_dtype", m.dtype == "fp32"   ? "float32"
                            : m.dtype == "bf16" ? "bfloat16"
                                                : "float16"},
            {"use_cache", true},
            {"bos_token_id", nullptr},
            {"eos_token_id", nullptr},
            // Without the key, transformers uses a default id for some families. A small vocabulary
            // may not contain that id.
            {"pad_token_id", nullptr}};
  head.update(m.family_config);

  NewFolder out(o.out, o.stop);
  std::vector<TensorEntry> entries;
  for (const ExportedTensor& t : m.tensors()) {
    std::vector<int64_t> sizes = t.sizes;
    if (t.rule->transposed) std::ranges::reverse(sizes);
    const auto make = [&out, t] {
      out.check_stop();
      const at::Tensor ours = t.read();
      const at::Tensor shifted = t.rule->shift != 0 ? ours + t.rule->shift : ours;
      return t.rule->transposed ? shifted.t() : shifted;
    };
    entries.push_back(make_entry(with_block(t.rule->theirs, t.block), t.dtype, sizes, make));
  }
  write_safetensors(out.path() / "model.safetensors", entries, {{"format", "pt"}});

  if (m.state.tokenizer && m.state.tokenizer->bpe() != nullptr) {
    const BPEDefinition& tokenizer = m.state.tokenizer->bpe()->definition();
    write_tokenizer(*m.state.tokenizer, out.path(), head);
    if (m.family->model_type == "qwen2" &&
        tokenizer.patterns != std::vector<std::string>{qwen2_pattern}) {
      log_warn(
          "transformers 5 splits the text for a model of type qwen2 as Qwen 2 does, whatever "
          "tokenizer.json says; "
          "load ",
          "this tokenizer with PreTrainedTokenizerFast, not with AutoTokenizer");
    }
  } else {
    log_warn(
        "no tokenizer is written, because other programs read only BPE tokenizers, and the run's "
        "tokenizer is ",
        m.state.tokenizer ? m.state.tokenizer->kind() : "unknown");
  }

  // config.json comes last, since write_tokenizer() adds the ids of special tokens to it.
  write_file_durably(out.path() / "config.json", json_text(head, 1) + "\n");
  out.publish();
}

}  // namespace lathe
