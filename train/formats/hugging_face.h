// Declares the import and export of Hugging Face folders: config.json, safetensors and
// tokenizer.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/formats/family.h"
#include "train/formats/import.h"
#include "train/formats/tensor_files.h"

namespace lathe {

/// Reads a model from a Hugging Face folder and converts its tensors to Lathe's form. The
/// constructor throws Exit::checkpoint for every fault of config.json and the tensors except values
/// that are not finite, which tensor() finds.
class HuggingFaceFolder : public ModelSource {
 public:
  /// `block_size`: the context length to use, or 0 for the context length that the model was made
  /// for. Throws Exit::usage if the model was made for a shorter context. `ignored`: keys of
  /// config.json that this build does not know and that the user asked to ignore.
  explicit HuggingFaceFolder(const fs::path& folder, int64_t block_size = 0,
                             const std::vector<std::string>& ignored = {});

  const Family& family() const { return *family_; }
  at::ScalarType dtype(const NamedParameter& parameter) const override;
  at::Tensor tensor(const NamedParameter& parameter) const override;
  Tokenizer tokenizer() const override;
  TokenizerSettings settings() const override;

 private:
  /// Holds the name of a parameter's tensor in the files, and the transformations that the
  /// parameter's TensorRule asks for.
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

/// Makes a run from a Hugging Face folder with import_model(), and returns the run's checkpoint.
fs::path import_hugging_face(const ImportOptions& options);

/// Options of an export in any format.
struct ExportOptions {
  fs::path run, out;
  std::string checkpoint = "newest";  ///< which checkpoint to export (see find_checkpoint())
  bool average = false;  ///< whether to write the moving average of the weights (optim.ema_decay)
  std::string dtype{};   ///< dtype of matrices: fp32, bf16 or fp16, in GGUF also q8_0 or q4_0; if
                         ///< empty, the dtype of the checkpoint
  std::string chat_template{};  ///< the template to export (see set_chat_template()); if empty, the
                                ///< run's chat template
  StopAsked stop{};  ///< called before each tensor; if it returns true, the export ends with
                     ///< Exit::stopped
};
/// Writes a run as a Hugging Face folder, completely or not at all. Throws Exit::usage if no family
/// can represent the run's model, if the run has adapters, or if `out` is not empty. Throws
/// Exit::busy if another process is writing `out`.
void export_hugging_face(const ExportOptions& options);

/// Writes tokenizer.json, tokenizer_config.json and the files of the tokenizer's other settings.
/// Also writes vocab.json and merges.txt if these can express the tokenizer, which must be a BPE
/// tokenizer. Adds the ids of special tokens to `config`, the contents of config.json, which must
/// have n_positions or max_position_embeddings.
void write_tokenizer(const Tokenizer& tokenizer, const fs::path& folder, Json& config);

}  // namespace lathe
