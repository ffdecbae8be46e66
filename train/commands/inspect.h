// Declares functions that describe and check files and folders.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

/// Returns a description of a run, checkpoint, data folder, .safetensors or .gguf file. Throws
/// Exit::usage for any other path.
std::string inspect(const fs::path& path);
/// Checks data, checkpoints and model files for damage. For the files of a data folder, a
/// checkpoint or all checkpoints of a run, compares every byte with the recorded checksums. Other
/// paths have no checksums. For token shards without a manifest.json, checks sizes and headers; for
/// a .safetensors file, checks the header; for a .gguf file, checks the header and that all values
/// are finite. Returns a text that describes the check. Throws Exit::checkpoint or Exit::data for
/// damage, and Exit::usage for any other kind of path.
std::string verify(const fs::path& path);

}  // namespace lathe
