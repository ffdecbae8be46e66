// What data folders of every kind share: manifest.json and checksums of files. No LibTorch header.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Writes NAME in `folder` durably, with a field "checksum": of all that it holds beside it.
void write_manifest_json(const fs::path& folder, Json json,
                         const std::string& name = "manifest.json");
/// A folder's NAME, parsed; nullopt where there is none. Exit::data where it is no JSON object.
std::optional<Json> read_manifest_json(const fs::path& folder,
                                       const std::string& name = "manifest.json");
/// Exit::data where a manifest is not what was written. One without a checksum, of an earlier
/// build, passes.
void check_manifest_checksum(const Json& json, const std::string& where);
/// json[key] as the name of a file within the manifest's folder; Exit::data where it is none.
std::string manifest_file(const Json& json, const char* key, const std::string& where);

/// Checksum of all bytes where they are no more than `pieces` mebibytes, else of so many evenly
/// spaced ones.
std::string sampled_checksum(std::span<const std::byte> bytes, size_t pieces);
/// Reads every byte and compares with the manifest's checksum. Exit::data with the file that
/// differs, or that has none
/// (`xxh3` is empty); Exit::stopped once `stop`, asked every 16 MiB, says so.
void verify_file(const MappedFile& file, const std::string& xxh3,
                 const std::function<bool()>& stop);

}  // namespace lathe
