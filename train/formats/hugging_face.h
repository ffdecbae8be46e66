// Import and export of Hugging Face folders: config.json, safetensors and tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/formats/family.h"
#include "train/formats/tensor_files.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

/// An open Hugging Face folder, with its model in our form. Opening it finds all faults but values
/// that are not finite, and throws Exit::checkpoint with what and where.
class HuggingFaceFolder {
 public:
  /// `block_size`: the context to use, 0 for all that the model was made for. Throws Exit::usage
  /// where the model was made for less. `ignored`: keys of config.json that nothing depends on.
  explicit HuggingFaceFolder(const fs::path& folder, int64_t block_size = 0,
                             const std::vector<std::string>& ignored = {});

  const Family& family() const { return *family_; }
  /// Returns [model].
  const ModelConfig& model() const { return model_; }
  /// Returns the model's parameters, shapes only.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Returns the values of a parameter in their stored dtype. They are not copied if their layout
  /// is ours, and are then valid as long as this object. Throws Exit::diverged where one is not
  /// finite.
  at::Tensor tensor(const NamedParameter& parameter) const;
  /// Returns the tokenizer of the folder. Throws Exit::data where this build can't read it, or it
  /// has more tokens than the model.
  Tokenizer tokenizer() const;

 private:
  struct Source {
    std::string name;
    bool transposed;
    double shift;  ///< of TensorRule
  };
  Source source_of(const NamedParameter& parameter) const;
  void check_tensors() const;

  fs::path folder_;
  const Family* family_;
  ModelConfig model_;
  TensorFiles files_;
  std::unique_ptr<Model> shapes_;
  std::vector<NamedParameter> parameters_;
};

struct ImportOptions {
  fs::path folder, out;
  int64_t block_size = 0;          ///< as in HuggingFaceFolder
  std::string tokenizer = "auto";  ///< auto: the folder's; none; or the path of one
  std::string chat_template{};     ///< as set_chat_template() takes it; empty: the folder's
  std::vector<std::string> ignored_keys{};  ///< of config.json; the run's record has them
  StopAsked stop{};  ///< called after each tensor; true ends the import with Exit::stopped
};
/// Makes a run from a Hugging Face folder. It has one checkpoint (step 0) with the weights in their
/// original dtype, and no optimizer state. Returns the checkpoint. `out` is created completely or
/// not at all. Throws Exit::usage where it contains anything, and Exit::busy where another process
/// writes it.
fs::path import_hugging_face(const ImportOptions& options);

struct ExportOptions {
  fs::path run, out;
  std::string checkpoint = "newest";  ///< as in find_checkpoint
  bool average = false;               ///< write the moving average of the weights (optim.ema_decay)
  std::string dtype{};                ///< of matrices: fp32, bf16, fp16; empty: as saved
  std::string chat_template{};        ///< as set_chat_template() takes it; empty: the run's
  StopAsked stop{};  ///< called after each tensor; true ends the export with Exit::stopped
};
/// Writes a run as a Hugging Face folder, completely or not at all. Throws Exit::usage where its
/// model has no family, it has adapters, or `out` contains anything, and Exit::busy where another
/// process writes it.
void export_hugging_face(const ExportOptions& options);

}  // namespace lathe
