#include "train/formats/gguf.h"

#include <ATen/ops/tensor.h>

#include <map>
#include <utility>

#include "core/io/log.h"
#include "train/formats/exported.h"

namespace lathe {
namespace {

/// Returns llama.cpp's name for a way of splitting text.
std::string name_of_splits(const BPEDefinition& d) {
  const std::vector<std::string>& p = d.patterns;
  if (p == std::vector<std::string>{gpt2_pattern}) return "gpt-2";
  if (p == std::vector<std::string>{llama3_pattern}) return "llama-bpe";
  if (p == std::vector<std::string>{qwen2_pattern}) return "qwen2";
  if (p == std::vector<std::string>{"\\p{N}", gpt2_pattern}) return "smollm";
  fail(Exit::usage, "GGUF has no name for the tokenizer's way to split text (", p.front(),
       "); it has one for those of GPT-2, Llama 3, Qwen 2 and SmolLM");
}

/// Returns SentencePiece's scores. llama.cpp merges the pair whose token has the highest score
/// first, so earlier merges have higher scores.
std::vector<float> scores_of(const BPEDefinition& d, size_t tokens) {
  std::vector<float> scores(tokens, 0);
  std::map<std::string_view, size_t> places;
  for (size_t id = 0; id < d.tokens.size(); ++id) places[d.tokens[id]] = id;
  for (const SpecialToken& s : d.special) {
    if (const auto found = places.find(s.text);
        found != places.end() && std::cmp_equal(found->second, s.id))
      places.erase(found);
  }

  // Going backward leaves the score of the first merge that makes a token.
  for (size_t i = d.merges.size(); i-- > 0;) {
    const auto& [a, b] = d.merges[i];
    const auto made =
        places.find(d.tokens[static_cast<size_t>(a)] + d.tokens[static_cast<size_t>(b)]);
    if (made != places.end()) scores[made->second] = -static_cast<float>(i + 1);
  }
  return scores;
}

void add_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size, GGUFMetadata& metadata) {
  const BPEDefinition& d = tokenizer.bpe()->definition();
  // The values of llama.cpp's token types.
  enum : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  const bool of_characters = !d.byte_tokens.empty();
  if (of_characters && !d.patterns.empty())
    fail(Exit::usage,
         "GGUF has no name for the tokenizer's way to split text: SentencePiece's, at each space");

  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  // The model's vocabulary may be larger than the tokenizer's, and GGUF has a token for each id.
  for (int64_t id = 0; id < vocab_size; ++id) {
    const bool there = id < std::ssize(d.tokens) && !d.tokens[static_cast<size_t>(id)].empty();
    tokens.push_back(there ? printed_token(d, static_cast<size_t>(id)) : str("[PAD", id, "]"));
    types.push_back(there ? normal : unused);
  }

  for (const int32_t id : d.byte_tokens) types[static_cast<size_t>(id)] = byte;
  for (const SpecialToken& s : d.special) {
    tokens[static_cast<size_t>(s.id)] = s.text;
    types[static_cast<size_t>(s.id)] = of_characters && s.text == "<unk>" ? unknown
                                       : s.special                        ? control
                                                                          : user_defined;
    if (s.text == "<unk>")
      metadata.emplace_back("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(s.id));
  }

  metadata.emplace_back("tokenizer.ggml.model", std::string(of_characters ? "llama" : "gpt2"));
  metadata.emplace_back("tokenizer.ggml.pre", of_characters ? "default" : name_of_splits(d));
  metadata.emplace_back("tokenizer.ggml.tokens", tokens);
  metadata.emplace_back("tokenizer.ggml.token_type", types);

  if (of_characters) {
    metadata.emplace_back("tokenizer.ggml.scores", scores_of(d, tokens.size()));
    metadata.emplace_back("tokenizer.ggml.add_space_prefix", d.space_before != SpaceBefore::none);
  } else {
    for (const auto& [a, b] : d.merges)
      merges.push_back(tokens[static_cast<size_t>(a)] + " " + tokens[static_cast<size_t>(b)]);
    metadata.emplace_back("tokenizer.ggml.merges", merges);
  }

  const TextMarks marks = tokenizer.marks();
  for (const auto& [key, id] : {std::pair("bos", marks.begin),
                                {"eos", marks.end},
                                {"eot", marks.turn_end},
                                {"padding", marks.pad}})
    if (id >= 0)
      metadata.emplace_back(str("tokenizer.ggml.", key, "_token_id"), static_cast<uint32_t>(id));
  metadata.emplace_back("tokenizer.ggml.add_bos_token", d.begin >= 0);
  if (!tokenizer.settings().chat_template.empty())
    metadata.emplace_back("tokenizer.chat_template", tokenizer.settings().chat_template);
}

/// Converts rows of heads from halves to pairs: in each head, row i of the first half is followed
/// by row i of the second.
at::Tensor in_pairs(const at::Tensor& t, int64_t heads) {
  const int64_t width = t.size(0) / heads;
  const at::Tensor halves = t.reshape({heads, 2, width / 2, -1});
  return halves.transpose(1, 2).reshape(t.sizes());
}

}  // namespace

void export_gguf(const ExportOptions& o) {
  const ExportedModel m(o);
  const AnyConfig& own = m.config.model.own;
  const std::string arch = m.family->gguf_name;
  if (arch.empty())
    fail(Exit::usage, "GGUF has no form that this build writes for models of type ",
         m.family->model_type, "; export to Hugging Face's form (leave --format out)");

  // llama.cpp's file types: 0 is float32, 1 mostly float16, 32 mostly bfloat16.
  GGUFMetadata metadata{{"general.architecture", arch},
                        {"general.type", std::string("model")},
                        {"general.name", without_trailing_slash(o.run).filename().string()},
                        {"general.file_type", uint32_t{m.dtype == "fp32"   ? 0U
                                                       : m.dtype == "fp16" ? 1U
                                                                           : 32U}},
                        {"general.quantization_version", uint32_t{2}}};

  for (auto& [key, value] : m.family->gguf(own))
    metadata.emplace_back(arch + "." + key, std::move(value));

  if (m.state.tokenizer && m.state.tokenizer->bpe() != nullptr) {
    add_tokenizer(*m.state.tokenizer, value_of<int64_t>(own, "vocab_size"), metadata);
  } else {
    metadata.emplace_back("tokenizer.ggml.model", std::string("none"));
    log_warn("no tokenizer is written: the run's is ",
             m.state.tokenizer ? m.state.tokenizer->kind() : "not known",
             ", and what others read is a BPE");
  }

  NewFolder out(o.out, o.stop);
  Snapshot snapshot;
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    // Entries do not own their bytes; `held` does.
    snapshot.held.push_back(t.contiguous());
    snapshot.model.push_back(make_entry(name, snapshot.held.back()));
  };

  m.each([&](const TensorRule& rule, int64_t block, const at::Tensor& t) {
    out.check_stop();
    using Rows = TensorRule::Rows;
    at::Tensor written = rule.gguf_wide ? t.to(at::kFloat) : t;
    if (rule.gguf_rows != Rows::as_they_are) {
      // n_kv_head = 0 stands for as many groups as heads.
      const int64_t heads = value_of<int64_t>(own, "n_head"),
                    groups = value_of<int64_t>(own, "n_kv_head");
      written =
          in_pairs(written, rule.gguf_rows == Rows::pairs_of_groups && groups > 0 ? groups : heads);
    }
    add(with_block(rule.gguf, block), written);
  });

  if (m.family->gguf_tensors) {
    for (const auto& [name, values] : m.family->gguf_tensors(own))
      add(name, at::tensor(values, at::kFloat));
  }

  write_gguf(out.path() / "model.gguf", metadata, snapshot.model);
  out.publish();
}

}  // namespace lathe
