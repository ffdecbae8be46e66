// Declares the part of importing a model that is the same for all file formats.
#pragma once

#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

/// Options of an import from any format.
struct ImportOptions {
  fs::path folder{}, out{};  ///< `folder`: a Hugging Face folder, or a GGUF file; `out`: the run
                             ///< folder
  int64_t block_size = 0;    ///< context length; 0: the context length that the model was made for
  std::string tokenizer = "auto";  ///< auto: the model's tokenizer; none: no tokenizer; otherwise
                                   ///< the path of a tokenizer
  std::string chat_template{};     ///< the template of the run (see set_chat_template()); if empty,
                                   ///< the model's chat template
  std::vector<std::string> ignored_keys{};  ///< unknown keys to ignore; recorded in the run
  StopAsked stop{};  ///< called before each tensor; if it returns true, the import ends with
                     ///< Exit::stopped
};

/// Reads a model from another program's files.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  /// Returns the [model] section of a config for the model.
  const ModelConfig& model() const { return model_; }
  /// Returns the model's parameters, which have shapes but no values.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Returns the dtype of tensor(parameter).
  virtual at::ScalarType dtype(const NamedParameter& parameter) const = 0;
  /// Returns the values of a parameter in their stored dtype, or in float32 if they are quantized.
  /// If the file stores the values in Lathe's layout, they are not copied, and they are valid as
  /// long as this object exists. Throws Exit::diverged if a value is not finite.
  virtual at::Tensor tensor(const NamedParameter& parameter) const = 0;
  /// Returns the model's tokenizer. Throws Exit::data if this build can't read the tokenizer, or if
  /// the tokenizer has more tokens than the model's vocabulary.
  virtual Tokenizer tokenizer() const = 0;
  /// Returns the settings that came with the tokenizer, even if tokenizer() throws. Throws
  /// Exit::data if the settings can't be read.
  virtual TokenizerSettings settings() const = 0;

 protected:
  ModelSource() = default;
  /// Sets model() from a model kind and the values of its keys, and parameters() from that model.
  /// If this build refuses the kind or a value, throws Exit::checkpoint with a message that begins
  /// with `where`.
  void set_model(const std::string& kind, const std::map<std::string, ConfigValue>& values,
                 const std::string& where);

 private:
  ModelConfig model_;
  std::unique_ptr<Model> shapes_;
  std::vector<NamedParameter> parameters_;
};

/// Creates a run from a model and returns the run's only checkpoint (step 0). Matrices keep their
/// original dtype and vectors become float32. The checkpoint has no optimizer state. Only one
/// tensor at a time is in memory. `options.out` is created completely or not at all. Throws
/// Exit::usage if `options.out` is not empty, and Exit::busy if another process is writing it.
fs::path import_model(const ModelSource& source, const ImportOptions& options);

/// Returns an entry of a float dtype as a tensor of the same shape. The tensor shares the entry's
/// memory, or is a copy if the entry's bytes are not aligned for the dtype.
at::Tensor tensor_of(const TensorEntry& entry);
/// If an element is not finite, throws Exit::diverged with a message that begins with `where`.
void check_finite(const at::Tensor& t, const std::string& where);
/// Throws Exit::data if the tokenizer, which was read from `path`, has more tokens than the model's
/// vocabulary.
void check_vocabulary(const Tokenizer& tokenizer, const fs::path& path, const ModelConfig& model);

}  // namespace lathe
