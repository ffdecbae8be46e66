// Reads the list of a mixture's sources from manifest.json or data.mix, and converts it to a
// manifest. Includes no LibTorch header.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"

namespace lathe {

/// One source of a mixture.
struct MixturePart {
  std::string name;   ///< name of the source and of its folder: letters, digits, - and _
  double weight = 1;  ///< above 0; weight / sum of all weights is the source's share of windows
};

/// Throws an error with exit code `code` if there is no source, a name is invalid or occurs twice,
/// or a weight is not in (0, 1e100]. The error message begins with `where`.
void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code);
/// Reads a value of data.mix, such as "web:0.7,code:0.3". Throws Exit::usage if the value is
/// invalid.
std::vector<MixturePart> read_mix(const std::string& text);
/// Returns a mixture's manifest.json without its checksum.
Json mixture_manifest(const std::vector<MixturePart>& parts);
/// Reads the sources of a manifest. Throws Exit::data if the list is invalid; the message begins
/// with `where`.
std::vector<MixturePart> read_mixture_manifest(const Json& json, const std::string& where);

}  // namespace lathe
