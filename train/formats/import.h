// Import of models: what files of all formats share.
#pragma once

#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

struct ImportOptions {
  fs::path folder{}, out{};        ///< `folder`: a Hugging Face folder, or a GGUF file
  int64_t block_size = 0;          ///< the context to use, 0 for all that the model was made for
  std::string tokenizer = "auto";  ///< auto: the model's; none; or the path of one
  std::string chat_template{};     ///< as set_chat_template() takes it; empty: the model's
  std::vector<std::string> ignored_keys{};  ///< of its config; the run's record has them
  StopAsked stop{};  ///< called after each tensor; true ends the import with Exit::stopped
};

/// A model in another program's files.
class ModelSource {
 public:
  virtual ~ModelSource() = default;

  /// Returns [model].
  const ModelConfig& model() const { return model_; }
  /// Returns the model's parameters, shapes only.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Returns the dtype of tensor(parameter).
  virtual at::ScalarType dtype(const NamedParameter& parameter) const = 0;
  /// Returns the values of a parameter in their stored dtype, quantized ones in float32. They are
  /// not copied if their layout is ours, and are then valid as long as this object. Throws
  /// Exit::diverged where one is not finite.
  virtual at::Tensor tensor(const NamedParameter& parameter) const = 0;
  /// Returns the model's tokenizer. Throws Exit::data where this build can't read it, or it has
  /// more tokens than the model.
  virtual Tokenizer tokenizer() const = 0;
  /// Returns what came with the tokenizer, even where that can't be read. Throws Exit::data.
  virtual TokenizerSettings settings() const = 0;

 protected:
  ModelSource() = default;
  /// Sets [model] from the family's kind and the values of its keys, and the parameters. `where`
  /// begins errors.
  void set_model(const std::string& kind, const std::map<std::string, ConfigValue>& values,
                 const std::string& where);

 private:
  ModelConfig model_;
  std::unique_ptr<Model> shapes_;
  std::vector<NamedParameter> parameters_;
};

/// Makes a run of a model. It has one checkpoint (step 0) with the weights in their original dtype,
/// and no optimizer state. One tensor at a time is in memory. Returns the checkpoint. `out` is
/// created completely or not at all. Throws Exit::usage where it contains anything, and Exit::busy
/// where another process writes it.
fs::path import_model(const ModelSource& source, const ImportOptions& options);

/// Returns an entry of a float dtype as a tensor of its shape; copies it if its bytes are unaligned
/// for its dtype.
at::Tensor tensor_of(const TensorEntry& entry);
/// Throws Exit::diverged, beginning with `where`, where an element is not finite.
void check_finite(const at::Tensor& t, const std::string& where);
/// Throws Exit::data where a tokenizer, read at `path`, has more tokens than the model.
void check_vocabulary(const Tokenizer& tokenizer, const fs::path& path, const ModelConfig& model);

}  // namespace lathe
