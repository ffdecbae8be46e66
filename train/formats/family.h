// Families of models that other programs exchange: how their config.json and the names of their
// tensors correspond to a model kind of Lathe. Each family is a file in this folder and a line in
// the table of family.cc. No LibTorch header.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/io/gguf.h"
#include "train/formats/config_keys.h"

namespace lathe {

/// The names of a parameter, ours and others'. '#' stands for the number of a block.
struct TensorRule {
  /// The order of the rows of queries and keys in GGUF. Ours have each head's rotary channels in
  /// halves; the architecture "llama" puts the two channels of a pair next to each other.
  enum class Rows { as_they_are, pairs_of_heads, pairs_of_groups };
  std::string ours, theirs;
  std::string gguf{};       ///< in GGUF files
  bool transposed = false;  ///< theirs is [inputs, outputs]
  bool always = false;      ///< they always have this bias; it is zero where ours has none
  Rows gguf_rows = Rows::as_they_are;
  bool gguf_wide = false;  ///< float32 in GGUF, whatever the dtype of the others
  double shift = 0;        ///< theirs is ours plus this
};

/// The contents of a config.json as keys of [model], without the section.
using ModelKeys = std::map<std::string, ConfigValue>;

/// The architecture of a GGUF file, and the facts about its model that its tensors give.
struct GGUFFacts {
  std::string architecture;            ///< general.architecture, which begins the names of keys
  int64_t vocab_size = 0;              ///< the rows of token_embd.weight
  bool tied = false;                   ///< the embeddings are the head
  std::vector<float> rope_divisors{};  ///< rope_freqs.weight; empty: there is none
};

struct Family {
  std::string model_type;    ///< in config.json
  std::string architecture;  ///< the class in transformers
  std::string kind;          ///< our model kind
  std::string prefix;        ///< of all tensor names except the head's; some files omit it
  std::vector<TensorRule> tensors{};
  /// Names of tensors that some files have although they follow from the config; they are ignored.
  std::vector<std::string> buffers{};
  /// Reads a config.json; `most` is the wanted context, or 0 for all. Throws the errors of
  /// ConfigKeys.
  std::function<ModelKeys(ConfigKeys& keys, int64_t most)> read{};
  /// Returns a model's config.json; nullopt where the family has no such model.
  std::function<std::optional<Json>(const AnyConfig& own)> write{};
  std::string gguf_name{};  ///< general.architecture; empty: this build writes no GGUF of it
  /// Returns the architecture's metadata, without its name in the keys.
  std::function<GGUFMetadata(const AnyConfig& own)> gguf{};
  /// Returns the vectors that GGUF has besides the parameters.
  std::function<std::vector<std::pair<std::string, std::vector<float>>>(const AnyConfig& own)>
      gguf_tensors{};
  /// Reads the architecture's metadata; `most` as in read(). Throws the errors of ConfigKeys.
  std::function<ModelKeys(ConfigKeys& keys, const GGUFFacts& facts, int64_t most)> read_gguf{};
};

/// Returns all families. The first that can represent a model is used for export.
const std::vector<Family>& families();
/// Returns the family of a config.json. Throws Exit::checkpoint with the model_type if unknown.
const Family& family_of(const Json& config, const std::string& where);
/// Returns the family of a GGUF file's architecture. Throws Exit::checkpoint if unknown.
const Family& family_of_gguf(const std::string& architecture, const std::string& where);

/// Returns a name with a block's number in place of '#'.
std::string with_block(const std::string& name, int64_t block);
/// Returns the rule for a parameter's path, or null, and the block's number (-1: none).
std::pair<const TensorRule*, int64_t> rule_of(const Family& family, const std::string& path);
/// Returns whether `name` matches `pattern`, in which '#' stands for any number.
bool is_named(const std::string& name, const std::string& pattern, int64_t* block = nullptr);

/// Returns the number of heads that share the rows of a parameter whose row order in GGUF differs
/// from ours.
int64_t heads_of_rows(const TensorRule& rule, const AnyConfig& own);
/// Reads ARCHITECTURE.vocab_size, which must be that of the embeddings if it is there.
int64_t read_gguf_vocabulary(ConfigKeys& keys, const GGUFFacts& facts);
/// Passes over the keys that any config.json may have and that do not change the computation.
/// Throws the errors of ConfigKeys if the model is not causal, has an encoder, or has
/// cross-attention.
void pass_common_keys(ConfigKeys& keys);
/// Returns the context to use: all `positions`, or `most` of them. Throws Exit::usage where `most`
/// is larger.
int64_t context_of(int64_t positions, int64_t most);
/// Returns the value of a key of a model's config.
template <class T>
const T& value_of(const AnyConfig& own, const char* key) {
  const T* found = own.find<T>(key);
  LATHE_CHECK(found != nullptr, "the model has no key ", key);
  return *found;
}

}  // namespace lathe
