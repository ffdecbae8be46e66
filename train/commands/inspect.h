// Shows files and folders, and checks them.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

/// Returns a run, checkpoint, data folder, .safetensors or .gguf file as text. Throws Exit::usage
/// for anything else.
std::string inspect(const fs::path& path);
/// Checks every byte of the data files of a data folder, of a checkpoint or of all checkpoints of a
/// run against the recorded checksums. Other
/// inputs have no checksums: for token shards without a manifest.json, checks sizes and headers;
/// for a .safetensors file, the header; for a .gguf file, the header and that values are finite.
/// Returns what was checked. Throws Exit::checkpoint or Exit::data with what is wrong, and
/// Exit::usage for anything else.
std::string verify(const fs::path& path);

}  // namespace lathe
