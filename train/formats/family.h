// Describes families of models that other programs read and write: how their config.json and the
// names of their tensors correspond to a model kind of Lathe. Each family is defined in a file of
// this folder and listed in the table of family.cc. In names and comments, "ours" is the form in
// Lathe, and "theirs" is the form in Hugging Face's transformers. Includes no LibTorch header.
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

/// The names of a parameter in Lathe and in the files of other programs, and how its values differ
/// there. In names, '#' stands for the number of a block.
struct TensorRule {
  /// The order of the rows of query and key weights in GGUF files. as_they_are: the same order as
  /// in Lathe, where the two channels of a rotary pair are in the two halves of a head.
  /// interleaved_query_heads and interleaved_kv_heads: the two channels are adjacent, as in the
  /// architecture "llama". The rows belong to query heads or to key/value heads, of which there may
  /// be fewer.
  enum class Rows { as_they_are, interleaved_query_heads, interleaved_kv_heads };
  std::string ours, theirs;
  std::string gguf{};       ///< name in GGUF files
  bool transposed = false;  ///< whether the matrix has the sizes [inputs, outputs] in theirs
  bool always = false;      ///< whether theirs always has this bias, with zeros if ours has no bias
  Rows gguf_rows = Rows::as_they_are;
  bool is_float32_in_gguf =
      false;         ///< whether GGUF files have it in float32, whatever the dtype of other tensors
  double shift = 0;  ///< number to add to our values to get theirs
};

/// The contents of a config.json as keys of [model], without the prefix "model.".
using ModelKeys = std::map<std::string, ConfigValue>;

/// The architecture of a GGUF file, and properties of its model that follow from its tensors.
struct GGUFFacts {
  /// Value of general.architecture, with which the names of keys begin.
  std::string architecture;
  int64_t vocab_size = 0;  ///< number of rows of token_embd.weight
  /// Whether the embedding and the head share their weight.
  bool tied = false;
  /// Values of the tensor rope_freqs.weight; empty if the file has no such tensor.
  std::vector<float> rope_divisors{};
};

/// A family of models, and the functions that read and write its configs.
struct Family {
  std::string model_type;    ///< value of model_type in config.json
  std::string architecture;  ///< name of the model class in transformers
  std::string kind;          ///< model kind in Lathe
  /// Prefix of all tensor names except the name of the head; some files omit the prefix.
  std::string prefix;
  std::vector<TensorRule> tensors{};
  /// Names of tensors that are ignored: some files have them although they follow from the config.
  std::vector<std::string> buffers{};
  /// Reads a config.json. `most` is the requested context length in tokens; 0 requests the model's
  /// context length. Throws the errors of ConfigKeys and context_of().
  std::function<ModelKeys(ConfigKeys& keys, int64_t most)> read{};
  /// Returns the config.json of a model. Returns nullopt if the family can't represent the model.
  /// `own` holds the keys of [model].
  std::function<std::optional<Json>(const AnyConfig& own)> write{};
  /// Value of general.architecture; empty if this build can't write the family as GGUF.
  std::string gguf_name{};
  /// Returns the GGUF metadata of the architecture. The keys lack the prefix "ARCHITECTURE.".
  std::function<GGUFMetadata(const AnyConfig& own)> gguf{};
  /// Returns the names and values of the vectors that a GGUF file has in addition to the
  /// parameters.
  std::function<std::vector<std::pair<std::string, std::vector<float>>>(const AnyConfig& own)>
      gguf_tensors{};
  /// Reads the GGUF metadata of the architecture. Takes the same `most` as read(), and throws the
  /// same errors.
  std::function<ModelKeys(ConfigKeys& keys, const GGUFFacts& facts, int64_t most)> read_gguf{};
};

/// Returns all families. An export uses the first family that can represent the model.
const std::vector<Family>& families();
/// Returns the family of a config.json. If the model_type is unknown, throws Exit::checkpoint with
/// its name.
const Family& family_of(const Json& config, const std::string& where);
/// Returns the family of a GGUF file's architecture. Throws Exit::checkpoint if the architecture is
/// unknown.
const Family& family_of_gguf(const std::string& architecture, const std::string& where);

/// Returns a name in which '#' is replaced by the number of a block.
std::string with_block(const std::string& name, int64_t block);
/// Returns the rule for the parameter with this path, and the number of the parameter's block. The
/// rule is null if no rule matches the path; the number is -1 if the parameter is in no block.
std::pair<const TensorRule*, int64_t> rule_of(const Family& family, const std::string& path);
/// Returns whether `name` matches `pattern`, in which '#' stands for any number. If it does, and if
/// the pattern has a '#', stores that number in `block`.
bool is_named(const std::string& name, const std::string& pattern, int64_t* block = nullptr);

/// Returns the number of heads to which the rows of a parameter belong. The gguf_rows of the rule
/// must not be as_they_are.
int64_t heads_of_rows(const TensorRule& rule, const AnyConfig& own);
/// Returns the size of the vocabulary, which is the number of rows of the embeddings. Throws
/// Exit::checkpoint if the file has a key ARCHITECTURE.vocab_size with another value.
int64_t read_gguf_vocabulary(ConfigKeys& keys, const GGUFFacts& facts);
/// Passes over the keys that the config.json of every family may have and that do not change the
/// computation. Throws the errors of ConfigKeys if the model is not causal, has an encoder, or has
/// cross-attention.
void pass_common_keys(ConfigKeys& keys);
/// Returns the context length to use: `most` or, if `most` is 0, `positions`, the length for which
/// the model was made. Throws Exit::usage if `most` is above `positions`, or if `most` is 0 and
/// `positions` is above 1,000,000.
int64_t context_of(int64_t positions, int64_t most);
/// Returns the value of a key of [model], which must exist and have the type T.
template <class T>
const T& value_of(const AnyConfig& own, const char* key) {
  const T* found = own.find<T>(key);
  LATHE_CHECK(found != nullptr, "the model has no key ", key);
  return *found;
}

}  // namespace lathe
