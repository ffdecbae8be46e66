#include "train/formats/gguf_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/dtype.h"
#include "train/formats/gguf_tokenizer.h"

namespace lathe {
namespace {

constexpr const char* embeddings = "token_embd.weight";
constexpr const char* head = "output.weight";
constexpr const char* rope_divisors = "rope_freqs.weight";

/// Returns an entry's values: floats in their dtype, quantized values in float32.
at::Tensor values_of(const TensorEntry& entry) {
  if (dtype_from_safetensors(entry.dtype)) return tensor_of(entry);
  const at::Tensor values = at::empty(entry.shape, at::kFloat);
  read_blocks(*find_gguf_type(entry.dtype), entry.bytes, values.mutable_data_ptr<float>());
  return values;
}

bool are_equal(const TensorEntry& a, const TensorEntry& b) {
  return a.shape == b.shape && a.dtype == b.dtype &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

/// Reorders the rows of each head from pairs to halves: the inverse of to_interleaved() in gguf.cc.
at::Tensor to_halves(const at::Tensor& t, int64_t heads) {
  const int64_t width = t.size(0) / heads;
  return t.reshape({heads, width / 2, 2, -1}).transpose(1, 2).reshape(t.sizes());
}

/// Returns the keys with the prefix "ARCHITECTURE.", which describe the model. Other keys are
/// informational or belong to the tokenizer.
ConfigKeys keys_of(const GGUFFile& file, const std::string& architecture) {
  const std::string where = file.path().string();
  Json json = Json::object();
  for (const auto& [key, value] : file.metadata().items()) {
    if (!key.starts_with(architecture + ".")) continue;
    if (value.is_number_float() && !std::isfinite(value.get<double>()))
      fail(Exit::checkpoint, where, ": ", key, " is not finite");
    // The keys are already unique, so append; json[key] would search all earlier keys.
    json.get_ref<Json::object_t&>().emplace_back(key, value);
  }
  return {std::move(json), where};
}

std::string text_of(const GGUFFile& file, const std::string& key, const std::string& otherwise) {
  const Json* value = file.find_value(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string())
    fail(Exit::checkpoint, file.path().string(), ": ", key, " is not a string");
  return value->get<std::string>();
}

}  // namespace

GGUFModel::GGUFModel(const fs::path& path, int64_t block_size,
                     const std::vector<std::string>& ignored)
    : file_(path) {
  const std::string where = path.string();
  if (const Json* parts = file_.find_value("split.count");
      parts != nullptr && *parts != 0 && *parts != 1)
    fail(Exit::checkpoint, where, " is one part of a model that consists of ", json_text(*parts),
         " files; join them with llama-gguf-split --merge");
  if (const std::string type = text_of(file_, "general.type", "model"); type != "model")
    fail(Exit::checkpoint, where, ": general.type = ", type,
         ", but only files with general.type = model can be imported");

  const std::string architecture = text_of(file_, "general.architecture", "");
  family_ = &family_of_gguf(architecture, where);
  const GGUFFacts facts = read_facts(architecture);
  ConfigKeys keys = keys_of(file_, architecture);
  const ModelKeys values = family_->read_gguf(keys, facts, block_size);
  for (const std::string& key : ignored) keys.ignore(key);
  // A key that was not read may change what the model computes, so reject the file.
  keys.finish();

  set_model(family_->kind, values, where);
  check_tensors(facts.tied);
}

GGUFFacts GGUFModel::read_facts(const std::string& architecture) const {
  const TensorEntry *tokens = file_.find(embeddings), *out = file_.find(head),
                    *divisors = file_.find(rope_divisors);
  const std::string where = file_.path().string();
  if (tokens == nullptr || tokens->shape.size() != 2)
    fail(Exit::checkpoint, where, " has no matrix ", embeddings);

  // llama.cpp's converter stores GPT-2's tied embeddings a second time as the head.
  GGUFFacts facts{.architecture = architecture,
                  .vocab_size = tokens->shape[0],
                  .tied = out == nullptr || are_equal(*tokens, *out)};
  if (divisors != nullptr && family_->gguf_tensors) {
    facts.rope_divisors.resize(static_cast<size_t>(divisors->numel()));
    read_blocks(*find_gguf_type(divisors->dtype), divisors->bytes, facts.rope_divisors.data());
    if (!std::ranges::all_of(facts.rope_divisors, [](float x) { return std::isfinite(x); }))
      fail(Exit::checkpoint, where, ": tensor \"", rope_divisors,
           "\" has elements that are not finite");
  }
  return facts;
}

std::pair<const TensorRule*, std::string> GGUFModel::source_of(const NamedParameter& p) const {
  const auto [rule, block] = rule_of(*family_, p.path);
  LATHE_CHECK(rule != nullptr, "the family ", family_->model_type, " has no rule for ", p.path);
  return {rule, with_block(rule->gguf, block)};
}

void GGUFModel::check_tensors(bool tied) const {
  std::set<std::string> used;
  if (tied) used.insert(head);
  if (family_->gguf_tensors) used.insert(rope_divisors);

  for (const NamedParameter& p : parameters()) {
    const std::string name = source_of(p).second;
    const TensorEntry* entry = file_.find(name);
    if (entry == nullptr)
      fail(Exit::checkpoint, file_.path().string(), " lacks the tensor \"", name,
           "\" that its metadata requires");
    used.insert(name);

    std::vector<int64_t> wanted = p.parameter.sizes().vec();
    // A model with a shorter context uses only the first rows of the position embeddings.
    if (p.path == "positions.weight" && entry->shape.size() == 2 && entry->shape[0] > wanted[0])
      wanted[0] = entry->shape[0];
    if (entry->shape != wanted)
      fail(Exit::checkpoint, file_.path().string(), ": tensor \"", name, "\" has the shape ",
           describe(at::IntArrayRef(entry->shape)), ", but it must be ",
           describe(at::IntArrayRef(wanted)), " according to the metadata");
  }

  for (const TensorEntry& entry : file_.tensors()) {
    if (!used.contains(entry.name))
      fail(Exit::checkpoint, file_.path().string(), ": tensor \"", entry.name,
           "\" does not belong to the model that the metadata describes");
  }
}

at::ScalarType GGUFModel::dtype(const NamedParameter& p) const {
  const auto [rule, name] = source_of(p);
  const auto stored = [&](const std::string& tensor) {
    return dtype_from_safetensors(file_.find(tensor)->dtype).value_or(at::kFloat);
  };
  if (!rule->is_float32_in_gguf) return stored(name);

  // GGUF files always store this tensor in float32, whatever its original dtype. Assume the dtype
  // of the token embeddings if it represents every value exactly.
  const at::Tensor values = values_of(*file_.find(name));
  const at::ScalarType others = stored(embeddings);
  return at::equal(values.to(others).to(at::kFloat), values.to(at::kFloat)) ? others : stored(name);
}

at::Tensor GGUFModel::tensor(const NamedParameter& p) const {
  const auto [rule, name] = source_of(p);
  const TensorEntry& entry = *file_.find(name);
  at::Tensor t = values_of(entry);
  check_finite(t, str(file_.path().string(), ": tensor \"", name, "\""));

  if (rule->is_float32_in_gguf) t = t.to(dtype(p));
  if (rule->gguf_rows != TensorRule::Rows::as_they_are)
    t = to_halves(t, heads_of_rows(*rule, model().own));
  // A model with a shorter context uses only the first rows of the position embeddings.
  return t.dim() == 2 ? t.slice(0, 0, p.parameter.size(0)) : t;
}

Tokenizer GGUFModel::tokenizer() const {
  const Tokenizer tokenizer = read_gguf_tokenizer(file_);
  check_vocabulary(tokenizer, file_.path(), model());
  return tokenizer;
}

TokenizerSettings GGUFModel::settings() const { return read_gguf_settings(file_); }

fs::path import_gguf(const ImportOptions& o) {
  return import_model(GGUFModel(o.folder, o.block_size, o.ignored_keys), o);
}

}  // namespace lathe
