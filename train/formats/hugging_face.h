// Import and export of Hugging Face folders: config.json, safetensors and tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/formats/family.h"
#include "train/formats/import.h"
#include "train/formats/tensor_files.h"

namespace lathe {

/// An open Hugging Face folder, with its model in our form. Opening it finds all faults of its
/// config.json and its tensors, except values that are not finite, and throws Exit::checkpoint.
class HuggingFaceFolder : public ModelSource {
 public:
  /// `block_size`: the context to use, 0 for all that the model was made for. Throws Exit::usage
  /// where the model was made for less. `ignored`: keys of config.json that nothing depends on.
  explicit HuggingFaceFolder(const fs::path& folder, int64_t block_size = 0,
                             const std::vector<std::string>& ignored = {});

  const Family& family() const { return *family_; }
  at::ScalarType dtype(const NamedParameter& parameter) const override;
  at::Tensor tensor(const NamedParameter& parameter) const override;
  Tokenizer tokenizer() const override;
  TokenizerSettings settings() const override;

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
  TensorFiles files_;
  mutable const TensorEntry* last_ = nullptr;  // that tensor() has read
};

/// Makes a run of a Hugging Face folder, as import_model() does.
fs::path import_hugging_face(const ImportOptions& options);

struct ExportOptions {
  fs::path run, out;
  std::string checkpoint = "newest";  ///< as in find_checkpoint
  bool average = false;               ///< write the moving average of the weights (optim.ema_decay)
  std::string dtype{};                ///< of matrices: fp32, bf16, fp16; in GGUF also q8_0, q4_0;
                                      ///< empty: as saved
  std::string chat_template{};        ///< as set_chat_template() takes it; empty: the run's
  StopAsked stop{};  ///< called before each tensor; true ends the export with Exit::stopped
};
/// Writes a run as a Hugging Face folder, completely or not at all. Throws Exit::usage where the
/// run's model has no family, the run has adapters, or `out` contains anything, and Exit::busy
/// where another process writes `out`.
void export_hugging_face(const ExportOptions& options);

}  // namespace lathe
