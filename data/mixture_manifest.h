// What a mixture is made of, as its manifest.json and data.mix say it. No LibTorch header.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"

namespace lathe {

/// A source.
struct MixturePart {
  std::string name;   ///< letters, digits, - and _; its folder's, within the mixture's
  double weight = 1;  ///< above 0
};

/// Exit `code` where there is no source, a name can't be a source's, stands twice, or a weight is
/// not above 0; `where` begins the sentence.
void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code);
/// data.mix, as "web:0.7,code:0.3". Exit::usage.
std::vector<MixturePart> read_mix(const std::string& text);
/// A manifest.json but for its checksum.
Json mixture_manifest(const std::vector<MixturePart>& parts);
/// The sources of one. Exit::data; `where` begins the sentence.
std::vector<MixturePart> read_mixture_manifest(const Json& json, const std::string& where);

}  // namespace lathe
