// Shows files and folders, and checks them.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

/// Returns a run, checkpoint, data folder, .safetensors or .gguf file as text. Throws Exit::usage
/// for anything else.
std::string inspect(const fs::path& path);
/// Checks every byte against the recorded checksums; of token shards without a manifest.json,
/// checks sizes and headers; of a .gguf file, the header and that values are finite. Returns what
/// was checked. Throws Exit::checkpoint or Exit::data with what is wrong.
std::string verify(const fs::path& path);

}  // namespace lathe
