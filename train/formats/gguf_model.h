// Import of GGUF files, which llama.cpp and programs based on it use.
#pragma once

#include "core/io/gguf_file.h"
#include "train/formats/family.h"
#include "train/formats/import.h"

namespace lathe {

/// An open GGUF file, with its model in our form. Opening it throws Exit::checkpoint, with what and
/// where, for every fault except parameters that are not finite, which tensor() finds.
class GGUFModel : public ModelSource {
 public:
  /// `block_size`: the context to use, 0 for all that the model was made for. Throws Exit::usage
  /// where the model was made for less. `ignored`: keys of the architecture that nothing depends
  /// on.
  explicit GGUFModel(const fs::path& file, int64_t block_size = 0,
                     const std::vector<std::string>& ignored = {});

  at::ScalarType dtype(const NamedParameter& parameter) const override;
  at::Tensor tensor(const NamedParameter& parameter) const override;
  Tokenizer tokenizer() const override;
  TokenizerSettings settings() const override;

 private:
  /// Returns the rule and the name in the file of a parameter.
  std::pair<const TensorRule*, std::string> source_of(const NamedParameter& parameter) const;
  GGUFFacts read_facts(const std::string& architecture) const;
  void check_tensors(bool tied) const;

  GGUFFile file_;
  const Family* family_;
};

/// Makes a run of a GGUF file, as import_model() does.
fs::path import_gguf(const ImportOptions& options);

}  // namespace lathe
