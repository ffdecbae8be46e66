// Declares the import of GGUF files, which llama.cpp and programs based on it use.
#pragma once

#include "core/io/gguf_file.h"
#include "train/formats/family.h"
#include "train/formats/import.h"

namespace lathe {

/// Reads a model from a GGUF file and converts its tensors to Lathe's form. The constructor throws
/// Exit::checkpoint if the file is damaged, or if its metadata and the names and shapes of its
/// tensors do not describe a model that Lathe supports. tensor() throws Exit::diverged if a
/// parameter is not finite, and tokenizer() throws if the tokenizer can't be used.
class GGUFModel : public ModelSource {
 public:
  /// `block_size`: the context length to use, or 0 for the context length that the model was made
  /// for. Throws Exit::usage if the model was made for a shorter context. `ignored`: keys of the
  /// architecture that the user asked to ignore. Throws Exit::usage for a key that the file lacks
  /// or that this build knows.
  explicit GGUFModel(const fs::path& file, int64_t block_size = 0,
                     const std::vector<std::string>& ignored = {});

  at::ScalarType dtype(const NamedParameter& parameter) const override;
  at::Tensor tensor(const NamedParameter& parameter) const override;
  Tokenizer tokenizer() const override;
  TokenizerSettings settings() const override;

 private:
  /// Returns the TensorRule of a parameter, and the parameter's name in the file.
  std::pair<const TensorRule*, std::string> source_of(const NamedParameter& parameter) const;
  GGUFFacts read_facts(const std::string& architecture) const;
  void check_tensors(bool tied) const;

  GGUFFile file_;
  const Family* family_;
};

/// Makes a run from a GGUF file with import_model(), and returns the run's checkpoint.
fs::path import_gguf(const ImportOptions& options);

}  // namespace lathe
