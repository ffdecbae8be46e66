// Import and export of Hugging Face folders: config.json, safetensors and tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/formats/family.h"
#include "train/formats/import.h"
#include "train/formats/tensor_files.h"

namespace lathe {

/// An open Hugging Face folder, whose model is given in Lathe's form. Opening it throws
/// Exit::checkpoint for every fault of its config.json and its tensors except values that are not
/// finite, which tensor() finds.
class HuggingFaceFolder : public ModelSource {
 public:
  /// `block_size`: the context length to use, or 0 for the one that the model was made for. Throws
  /// Exit::usage if the model was made for a shorter one. `ignored`: keys of config.json that this
  /// build does not know and that the user asks to ignore.
  explicit HuggingFaceFolder(const fs::path& folder, int64_t block_size = 0,
                             const std::vector<std::string>& ignored = {});

  const Family& family() const { return *family_; }
  at::ScalarType dtype(const NamedParameter& parameter) const override;
  at::Tensor tensor(const NamedParameter& parameter) const override;
  Tokenizer tokenizer() const override;
  TokenizerSettings settings() const override;

 private:
  /// The tensor of a parameter in the files, and the transformations of its TensorRule.
  struct Source {
    std::string name;
    bool transposed;
    double shift;
  };
  Source source_of(const NamedParameter& parameter) const;
  void check_tensors() const;

  fs::path folder_;
  const Family* family_;
  TensorFiles files_;
  mutable const TensorEntry* last_ = nullptr;  // the entry that tensor() read last
};

/// Makes a run from a Hugging Face folder by import_model(), and returns its checkpoint.
fs::path import_hugging_face(const ImportOptions& options);

/// Options of an export in any format.
struct ExportOptions {
  fs::path run, out;
  std::string checkpoint = "newest";  ///< as find_checkpoint() takes it
  bool average = false;               ///< write the moving average of the weights (optim.ema_decay)
  std::string dtype{};                ///< of matrices: fp32, bf16, fp16; in GGUF also q8_0, q4_0;
                                      ///< empty: as saved
  std::string chat_template{};        ///< as set_chat_template() takes it; empty: the run's own
  StopAsked stop{};  ///< called before each tensor; true ends the export with Exit::stopped
};
/// Writes a run as a Hugging Face folder, completely or not at all. Throws Exit::usage if no family
/// can represent the run's model, the run has adapters, or `out` is not empty, and Exit::busy if
/// another process is writing `out`.
void export_hugging_face(const ExportOptions& options);

}  // namespace lathe
