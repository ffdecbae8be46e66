// Shows files and folders, and checks them.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

/// Returns a description of a run, checkpoint, data folder, .safetensors or .gguf file. Throws
/// Exit::usage for anything else.
std::string inspect(const fs::path& path);
/// Checks every byte of a data folder's files, of a checkpoint or of all checkpoints of a run
/// against the recorded checksums. Other inputs have no checksums: for token shards without a
/// manifest.json, checks sizes and headers; for a .safetensors file, the header; for a .gguf file,
/// the header and that all values are finite. Returns a text that describes the check. Throws
/// Exit::checkpoint or Exit::data for damage, and Exit::usage for any other kind of path.
std::string verify(const fs::path& path);

}  // namespace lathe
