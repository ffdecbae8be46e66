// Adapters (model.lora): the model that a config puts them on, and merging them into it.
#pragma once

#include <string>

#include "data/manifest.h"
#include "nn/models/gpt.h"
#include "train/config/run_config.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// The checkpoint that model.lora_base stands for; Exit::checkpoint where there is none.
fs::path find_base(const RunConfig& config);
/// Finds a config's model.lora_base, where it has adapters, and takes [model] from it. Exit::usage where a key was
/// given otherwise.
void adopt_base(LoadedConfig& loaded);
/// As check_tokenizer, against the base under a config's adapters.
void check_base_tokenizer(const LoadedConfig& loaded, const std::optional<DataManifest>& manifest);
/// The base under a config's adapters, and how it is kept.
GPT load_base(const fs::path& base, const RunConfig& config, at::Device device);
/// What tells one base from another: the checksum of its model.safetensors; "" without a base.
std::string base_hash(const fs::path& base);
/// Exit::checkpoint where the base is not the one that adapters were trained on.
void check_base(const fs::path& base, const RunConfig& config, const std::string& hash);

/// Writes the model of a run with adapters, adapters merged into it, as a run of its own in `out`: for eval, generate,
/// and as a base; without optimizer state.
fs::path merge(const fs::path& run, const fs::path& out);

}  // namespace lathe
