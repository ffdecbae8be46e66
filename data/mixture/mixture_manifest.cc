#include "data/mixture/mixture_manifest.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <sstream>

#include "core/config.h"
#include "core/io/text.h"
#include "data/folder.h"

namespace lathe {
namespace {

constexpr const char* mixture_format = "lathe-mixture-1";

}  // namespace

void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code) {
  if (parts.empty()) fail(code, where, ": the mixture has no sources; give at least one");
  std::set<std::string> names;
  for (const MixturePart& part : parts) {
    const auto allowed = [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_';
    };
    if (part.name.empty() || !std::all_of(part.name.begin(), part.name.end(), allowed))
      fail(code, where, ": \"", part.name,
           "\" is not a valid name of a source; use letters, digits, - and _");
    if (!names.insert(part.name).second)
      fail(code, where, ": the source ", part.name, " is listed twice; remove one");
    // The limit keeps the sum of all weights finite.
    if (!(part.weight > 0) || !(part.weight <= 1e100))
      fail(code, where, ": the share of ", part.name, " must be above 0 and at most 1e100, not ",
           part.weight);
  }
}

std::vector<MixturePart> read_mix(const std::string& text) {
  std::vector<MixturePart> parts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t colon = word.rfind(':');
    const ConfigValue weight =
        read_value(colon == std::string::npos ? "" : word.substr(colon + 1), 0.0);
    const auto* number = std::get_if<double>(&weight);
    if (colon == std::string::npos || number == nullptr)
      fail(Exit::usage, "data.mix = \"", text, "\": \"", word,
           "\" does not give a source and its weight; write it as in web:0.7");
    parts.push_back({word.substr(0, colon), *number});
  }
  check_mixture(parts, "data.mix", Exit::usage);
  return parts;
}

Json mixture_manifest(const std::vector<MixturePart>& parts) {
  Json sources = Json::array();
  for (const MixturePart& part : parts)
    sources.push_back({{"name", part.name}, {"weight", part.weight}});
  return {{"format", mixture_format}, {"kind", "mixture"}, {"sources", sources}};
}

std::vector<MixturePart> read_mixture_manifest(const Json& json, const std::string& where) {
  check_data_format(json, mixture_format, where);
  check_manifest_checksum(json, where);
  std::vector<MixturePart> all;
  const auto sources = json_get<Json>(json, "sources", where, Exit::data);
  for (const Json& source : sources) {
    all.push_back({json_get<std::string>(source, "name", where, Exit::data),
                   json_get<double>(source, "weight", where, Exit::data)});
  }
  check_mixture(all, where, Exit::data);
  return all;
}

}  // namespace lathe
