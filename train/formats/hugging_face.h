// Hugging Face folders: config.json, safetensors and tokenizer.json, as runs of ours and back.
#pragma once

#include <optional>
#include <string>

#include "train/formats/family.h"
#include "train/formats/tensor_files.h"
#include "train/store/checkpoint.h"
#include "train/store/new_folder.h"

namespace lathe {

/// A Hugging Face folder, opened: its model as we have it. All that can be wrong with it, but for
/// values that are not finite, is found when it is opened: Exit::checkpoint with what and where.
class HuggingFaceFolder {
 public:
  /// `block_size`: the context to take, 0 for all that the model was made for; Exit::usage where
  /// that is less.
  explicit HuggingFaceFolder(const fs::path& folder, int64_t block_size = 0);

  const Family& family() const { return *family_; }
  /// [model].
  const ModelConfig& model() const { return model_; }
  /// Its parameters, shapes alone.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// The values of one, in the dtype that they are stored in; in place where they lie as ours do,
  /// valid as long as this object. Exit::diverged where one is not finite.
  at::Tensor tensor(const NamedParameter& parameter) const;
  /// The tokenizer of its files. Exit::data where this build can't read it, or it has more tokens
  /// than the model.
  Tokenizer tokenizer() const;

 private:
  struct Source {
    std::string name;
    bool transposed;
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
  StopAsked stop{};                ///< asked after each tensor; true ends it with Exit::stopped
};
/// Makes a run of a Hugging Face folder, with one checkpoint (step 0) that has the weights in the
/// dtype they came in, and no optimizer state. Returns the checkpoint. `out` is made, whole or not
/// at all; Exit::usage where it holds anything, Exit::busy where another process writes it.
fs::path import_hugging_face(const ImportOptions& options);

struct ExportOptions {
  fs::path run, out;
  std::string checkpoint = "newest";  ///< as in find_checkpoint
  bool average = false;  ///< the moving average of the weights (optim.ema_decay) in their place
  std::string dtype{};   ///< of matrices: fp32, bf16, fp16; empty: as they are saved
  StopAsked stop{};      ///< asked after each tensor; true ends it with Exit::stopped
};
/// Writes a run as a Hugging Face folder, whole or not at all. Exit::usage where its model has no
/// family, it has adapters, or `out` holds anything, Exit::busy where another process writes it.
void export_hugging_face(const ExportOptions& options);

}  // namespace lathe
