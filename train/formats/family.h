// Families of models that other programs exchange: how their config.json and the names of their
// tensors stand to a model kind of ours. A family is a file in this folder and a line in the table
// of family.cc. No LibTorch header.
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

/// A parameter of ours and what others call it. '#' stands for the number of a block.
struct TensorRule {
  /// How the rows of queries and keys stand in GGUF: ours have each head's rotary channels in
  /// halves, which "llama" keeps as pairs beside each other.
  enum class Rows { as_they_are, pairs_of_heads, pairs_of_groups };
  std::string ours, theirs;
  std::string gguf{};       ///< in GGUF files
  bool transposed = false;  ///< theirs is [inputs, outputs]
  bool always = false;      ///< they always have this bias: zeros where ours has none
  Rows gguf_rows = Rows::as_they_are;
  bool gguf_wide = false;  ///< float32 in GGUF whatever the rest is
};

/// What a config.json says, in keys of [model] without their section.
using ModelKeys = std::map<std::string, ConfigValue>;

struct Family {
  std::string model_type;    ///< as config.json has it
  std::string architecture;  ///< the class in transformers
  std::string kind;          ///< of ours
  std::string prefix;        ///< of the tensors but the head's, which may be missing
  std::vector<TensorRule> tensors{};
  std::vector<std::string>
      buffers{};  ///< names of tensors that follow from the config, which some files have
  /// Takes a config.json apart; `most` is the context that is wanted, or 0 for the whole. Errors as
  /// in ConfigKeys.
  std::function<ModelKeys(ConfigKeys& keys, int64_t most)> read{};
  /// config.json of a model; nothing where the family has no such model.
  std::function<std::optional<Json>(const AnyConfig& own)> write{};
  std::string gguf_name{};  ///< general.architecture
  /// Metadata of the architecture, keys without its name.
  std::function<GGUFMetadata(const AnyConfig& own)> gguf{};
  /// Vectors that GGUF has beside the parameters.
  std::function<std::vector<std::pair<std::string, std::vector<float>>>(const AnyConfig& own)>
      gguf_tensors{};
};

/// All of them. Where several can hold a model, the first is written.
const std::vector<Family>& families();
/// The family of a config.json; Exit::checkpoint names the model_type where there is none.
const Family& family_of(const Json& config, const std::string& where);

/// A name with the number of a block in place of '#'.
std::string with_block(const std::string& name, int64_t block);
/// The rule of a parameter's path and the block's number (-1: none), or null.
std::pair<const TensorRule*, int64_t> rule_of(const Family& family, const std::string& path);
/// Whether `name` is `pattern`, in which '#' stands for any number.
bool is_named(const std::string& name, const std::string& pattern, int64_t* block = nullptr);

/// Passes over the keys that every config.json may have and that change nothing of what is
/// computed.
void pass_common_keys(ConfigKeys& keys);
/// The context to take: all of `positions`, or `most` of them. Exit::usage where there are not so
/// many.
int64_t context_of(int64_t positions, int64_t most);
/// A key of a model's config.
template <class T>
const T& value_of(const AnyConfig& own, const char* key) {
  const T* found = own.find<T>(key);
  LATHE_CHECK(found != nullptr, "the model has no key ", key);
  return *found;
}

}  // namespace lathe
