// Declares the import and export of adapters in the folders of Hugging Face's PEFT, which hold
// adapter_config.json and adapter_model.safetensors. Supports LoRA (Hu et al. 2021) and DoRA (Liu
// et al. 2024).
#pragma once

#include "train/formats/hugging_face.h"

namespace lathe {

/// Returns whether a folder holds adapters in PEFT's format.
bool is_peft(const fs::path& folder);

/// Options of import_peft().
struct PeftImport {
  fs::path folder;   ///< a folder with an adapter_config.json
  std::string base;  ///< run or checkpoint of the model that the adapters were trained on
  fs::path out;
  StopAsked stop{};  ///< called before each tensor; if it returns true, the import ends with
                     ///< Exit::stopped
};
/// Makes a run from a PEFT folder, with one checkpoint (step 0) and no optimizer state. Returns the
/// checkpoint. `out` is created completely or not at all. Throws Exit::checkpoint if the folder
/// holds anything other than LoRA or DoRA on linear layers of the base, Exit::diverged if an
/// element is not finite, and Exit::usage if the base has adapters, if no family can represent its
/// model, or if `out` is not empty.
fs::path import_peft(const PeftImport& options);
/// Writes the adapters of a run as a PEFT folder, completely or not at all. Throws Exit::usage if
/// the run has no adapters, if no family can represent its model, or if `options` ask for averages
/// or a chat template.
void export_peft(const ExportOptions& options);

}  // namespace lathe
