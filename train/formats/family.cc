// Defines the table of model families, and functions that several families use.
#include "train/formats/family.h"

#include <algorithm>

namespace lathe {

Family gpt2_family();
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family olmo2_family();
Family smollm3_family();
Family gemma2_family();
Family gemma3_family();

const std::vector<Family>& families() {
  static const std::vector<Family> all{gpt2_family(),    llama_family(),  mistral_family(),
                                       qwen2_family(),   qwen3_family(),  olmo2_family(),
                                       smollm3_family(), gemma2_family(), gemma3_family()};
  return all;
}

const Family& family_of(const Json& config, const std::string& where) {
  const auto type = json_get<std::string>(config, "model_type", where, Exit::checkpoint);
  std::string names;
  for (const Family& family : families()) {
    if (family.model_type == type) return family;
    names += (names.empty() ? "" : ", ") + family.model_type;
  }
  fail(Exit::checkpoint, where, ": model_type = \"", type, "\", but this build reads only ", names);
}

const Family& family_of_gguf(const std::string& architecture, const std::string& where) {
  std::string names;
  for (const Family& family : families()) {
    if (family.gguf_name.empty()) continue;
    if (family.gguf_name == architecture) return family;
    // Llama and Mistral have the same name in GGUF files, so list each name only once.
    if (names.find(family.gguf_name) == std::string::npos)
      names += (names.empty() ? "" : ", ") + family.gguf_name;
  }
  fail(Exit::checkpoint, where, ": general.architecture = \"", architecture,
       "\", but this build reads only ", names);
}

std::string with_block(const std::string& name, int64_t block) {
  const auto at = name.find('#');
  return at == std::string::npos ? name
                                 : name.substr(0, at) + std::to_string(block) + name.substr(at + 1);
}

bool is_named(const std::string& name, const std::string& pattern, int64_t* block) {
  const auto at = pattern.find('#');
  if (at == std::string::npos) return name == pattern;
  const size_t rest = pattern.size() - at - 1;
  if (name.size() <= at + rest || !name.starts_with(pattern.substr(0, at)) ||
      !name.ends_with(pattern.substr(at + 1)))
    return false;
  const std::string number = name.substr(at, name.size() - at - rest);
  if (number.size() > 6 || number.find_first_not_of("0123456789") != std::string::npos)
    return false;
  if (block != nullptr) *block = std::stoll(number);
  return true;
}

std::pair<const TensorRule*, int64_t> rule_of(const Family& family, const std::string& path) {
  int64_t block = -1;
  for (const TensorRule& rule : family.tensors) {
    if (is_named(path, rule.ours, &block)) return {&rule, block};
  }
  return {nullptr, -1};
}

int64_t heads_of_rows(const TensorRule& rule, const AnyConfig& own) {
  using Rows = TensorRule::Rows;
  // n_kv_head = 0 means as many key/value heads as query heads.
  const int64_t heads = value_of<int64_t>(own, "n_head"),
                groups = value_of<int64_t>(own, "n_kv_head");
  return rule.gguf_rows == Rows::interleaved_kv_heads && groups > 0 ? groups : heads;
}

int64_t read_gguf_vocabulary(ConfigKeys& keys, const GGUFFacts& facts) {
  const std::string key = facts.architecture + ".vocab_size";
  if (keys.whole(key, 1, 10000000, facts.vocab_size) != facts.vocab_size)
    keys.refuse(key, str("token_embd.weight has ", facts.vocab_size, " rows"));
  return facts.vocab_size;
}

void pass_common_keys(ConfigKeys& keys) {
  keys.only("is_causal", {true});
  keys.pass({"model_type",
             "architectures",
             "_name_or_path",
             "name_or_path",
             "_commit_hash",
             "transformers_version",
             "torch_dtype",
             "dtype",
             "tokenizer_class",
             "use_cache",
             "bos_token_id",
             "eos_token_id",
             "pad_token_id",
             "sep_token_id",
             "decoder_start_token_id",
             "unk_token_id",
             "initializer_range",
             "id2label",
             "label2id",
             "_num_labels",
             "num_labels",
             "problem_type",
             "finetuning_task",
             "task_specific_params",
             "return_dict",
             "output_attentions",
             "output_hidden_states",
             "chunk_size_feed_forward",
             "gradient_checkpointing",
             "is_decoder",
             "auto_map",
             "prefix"});

  // These keys change the computation, so only the values of a decoder are accepted.
  keys.only("is_encoder_decoder", {false});
  keys.only("add_cross_attention", {false});
}

int64_t context_of(int64_t positions, int64_t most) {
  if (most > positions)
    fail(Exit::usage, "command line: --block-size = ", most, ", but the model was made for only ",
         positions, " tokens");
  if (most == 0 && positions > 1'000'000)
    fail(Exit::usage, "the model was made for ", positions,
         " tokens; give the context that you need, up to 1000000, as --block-size, or "
         "model.block_size "
         "in a config");
  return most > 0 ? most : positions;
}

}  // namespace lathe
