// Looking into files and checking them.
#pragma once

#include <string>

#include "core/io/file.h"

namespace lathe {

enum class PathKind { missing, file, safetensors, folder, data, run, checkpoint };
/// What is at a path, by its name and what is in it. A data folder has a manifest.json or token shards.
PathKind kind_of(const fs::path& path);

/// A run, checkpoint, data folder or .safetensors file as text. Exit::usage for anything else.
std::string inspect(const fs::path& path);
/// Checks every byte against the recorded checksums, of token shards without a manifest.json sizes and headers; returns
/// what was checked. Exit::checkpoint or Exit::data with what is wrong.
std::string verify(const fs::path& path);

}  // namespace lathe
