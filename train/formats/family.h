// Families of models that other programs exchange: how their config.json and the names of their
// tensors correspond to a model kind of Lathe. Each family is defined in a file of this folder and
// listed in the table of family.cc. In names and comments, "ours" means Lathe's, and "theirs" that
// of Hugging Face's transformers. Includes no LibTorch header.
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

/// The names of a parameter in Lathe and in other programs' files, and how its values differ there.
/// '#' stands for the number of a block.
struct TensorRule {
  /// The order of the rows of query and key weights in GGUF. as_they_are: as in Lathe, where the
  /// two channels of a rotary pair are in the two halves of a head. pairs_of_...: the two channels
  /// are adjacent, as in the architecture "llama". A row belongs to one of the query heads
  /// (interleaved_query_heads) or of the fewer key/value heads (interleaved_kv_heads).
  enum class Rows { as_they_are, interleaved_query_heads, interleaved_kv_heads };
  std::string ours, theirs;
  std::string gguf{};       ///< the name in GGUF files
  bool transposed = false;  ///< whether theirs is [inputs, outputs]
  bool always = false;      ///< whether theirs always has this bias, zeros if ours has none
  Rows gguf_rows = Rows::as_they_are;
  bool is_float32_in_gguf =
      false;         ///< whether GGUF has it in float32, whatever the dtype of the others
  double shift = 0;  ///< theirs is ours plus this number
};

/// The contents of a config.json as keys of [model], without the section.
using ModelKeys = std::map<std::string, ConfigValue>;

/// The architecture of a GGUF file, and properties of its model that follow from its tensors.
struct GGUFFacts {
  std::string architecture;            ///< general.architecture, which begins the names of keys
  int64_t vocab_size = 0;              ///< the number of rows of token_embd.weight
  bool tied = false;                   ///< whether the embeddings are also the head's weight
  std::vector<float> rope_divisors{};  ///< the tensor rope_freqs.weight; empty: there is none
};

/// A family of models, and how it is read and written.
struct Family {
  std::string model_type;    ///< in config.json
  std::string architecture;  ///< the name of the class in transformers
  std::string kind;          ///< Lathe's model kind
  std::string prefix;        ///< of all tensor names except the head's; some files omit it
  std::vector<TensorRule> tensors{};
  /// Names of tensors that some files have although they follow from the config; they are ignored.
  std::vector<std::string> buffers{};
  /// Reads a config.json. `most` is the wanted context length in tokens, or 0 for the model's own.
  /// Throws the errors of ConfigKeys and context_of().
  std::function<ModelKeys(ConfigKeys& keys, int64_t most)> read{};
  /// Returns a model's config.json; nullopt if the family can't represent the model. `own` holds
  /// the keys of [model].
  std::function<std::optional<Json>(const AnyConfig& own)> write{};
  std::string gguf_name{};  ///< general.architecture; empty: this build writes no GGUF of it
  /// Returns the architecture's GGUF metadata. The keys lack the prefix "ARCHITECTURE.".
  std::function<GGUFMetadata(const AnyConfig& own)> gguf{};
  /// Returns the names and values of the vectors that GGUF has besides the parameters.
  std::function<std::vector<std::pair<std::string, std::vector<float>>>(const AnyConfig& own)>
      gguf_tensors{};
  /// Reads the architecture's GGUF metadata; `most` and errors are those of read().
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
/// Returns whether `name` matches `pattern`, in which '#' stands for any number. If so, and if the
/// pattern has a '#', stores that number in `block`.
bool is_named(const std::string& name, const std::string& pattern, int64_t* block = nullptr);

/// Returns the number of heads to which the rows of a parameter belong. The rule's gguf_rows must
/// not be as_they_are.
int64_t heads_of_rows(const TensorRule& rule, const AnyConfig& own);
/// Returns the vocabulary size, that of the embeddings. Throws Exit::checkpoint if the key
/// ARCHITECTURE.vocab_size is present and differs.
int64_t read_gguf_vocabulary(ConfigKeys& keys, const GGUFFacts& facts);
/// Passes over the keys that every family's config.json may have and that do not change the
/// computation.
/// Throws the errors of ConfigKeys if the model is not causal, has an encoder, or has
/// cross-attention.
void pass_common_keys(ConfigKeys& keys);
/// Returns the context length to use: `most`, or `positions`, for which the model was made, if
/// `most` is 0. Throws Exit::usage if `most` is above `positions`, or if it is 0 and `positions` is
/// above 1,000,000.
int64_t context_of(int64_t positions, int64_t most);
/// Returns the value of a key of [model], which must exist and have the type T.
template <class T>
const T& value_of(const AnyConfig& own, const char* key) {
  const T* found = own.find<T>(key);
  LATHE_CHECK(found != nullptr, "the model has no key ", key);
  return *found;
}

}  // namespace lathe
