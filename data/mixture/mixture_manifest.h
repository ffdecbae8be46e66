// Reads and writes the list of a mixture's sources in manifest.json and data.mix. No LibTorch
// header.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"

namespace lathe {

/// One source of a mixture.
struct MixturePart {
  std::string name;   ///< letters, digits, - and _; also the name of its folder
  double weight = 1;  ///< above 0
};

/// Throws an error with exit code `code` if there is no source, a name is invalid or occurs twice,
/// or a weight is not above 0 or exceeds 1e100. `where` begins the error message.
void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code);
/// Reads a value of data.mix, such as "web:0.7,code:0.3". Throws Exit::usage if it is invalid.
std::vector<MixturePart> read_mix(const std::string& text);
/// Returns a mixture's manifest.json without its checksum.
Json mixture_manifest(const std::vector<MixturePart>& parts);
/// Reads the sources of a manifest. Throws Exit::data if it is invalid; `where` begins the message.
std::vector<MixturePart> read_mixture_manifest(const Json& json, const std::string& where);

}  // namespace lathe
