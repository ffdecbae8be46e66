// Looking into files and checking them.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

/// A run, checkpoint, data folder or .safetensors file as text. Exit::usage for anything else.
std::string inspect(const fs::path& path);
/// Checks every byte against the recorded checksums, of token shards without a manifest.json sizes
/// and headers; returns what was checked. Exit::checkpoint or Exit::data with what is wrong.
std::string verify(const fs::path& path);

}  // namespace lathe
