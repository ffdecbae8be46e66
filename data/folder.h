// Reads, writes and checks the manifest.json of data folders of every kind, and verifies the
// checksums of the folders' files. Includes no LibTorch header.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Adds the field "checksum", which covers all other fields, and writes the JSON durably to the
/// file `name` in `folder`.
void write_manifest_json(const fs::path& folder, Json json,
                         const std::string& name = "manifest.json");
/// Returns the parsed JSON of the file `name` in `folder`; nullopt if the file is missing. Throws
/// Exit::data if it is not a JSON object.
std::optional<Json> read_manifest_json(const fs::path& folder,
                                       const std::string& name = "manifest.json");
/// Throws Exit::data unless json["format"] is `known`.
void check_data_format(const Json& json, const char* known, const std::string& where);
/// Throws Exit::data if a manifest contains a checksum that does not match its other fields. A
/// manifest without a checksum, which an earlier build wrote, passes.
void check_manifest_checksum(const Json& json, const std::string& where);
/// Returns the "kind" in a data folder's manifest; "tokens" if the folder has no manifest or the
/// manifest has no "kind".
std::string kind_of_data(const fs::path& folder);
/// Returns json[key], a file name within the manifest's folder. Throws Exit::data for any other
/// value.
std::string manifest_file(const Json& json, const char* key, const std::string& where);

/// Returns the checksum of all bytes if there are at most `pieces` MiB of them, otherwise the
/// checksum of `pieces` evenly spaced pieces of 1 MiB. `pieces` must be at least 2.
std::string sampled_checksum(std::span<const std::byte> bytes, size_t pieces);
/// Reads the file and compares its checksum with `xxh3`. Throws Exit::data with the file's name if
/// the checksums differ or `xxh3` is empty, and Exit::stopped once `stop`, which is called every 16
/// MiB, returns true.
void verify_file(const MappedFile& file, const std::string& xxh3,
                 const std::function<bool()>& stop);

}  // namespace lathe
