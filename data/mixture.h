// Mixtures: token data of several folders, of which windows are drawn by weights.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/data.h"

namespace lathe {

/// What a mixture is made of.
struct MixturePart {
  std::string name;   ///< letters, digits, - and _; its folder's, within the mixture's
  double weight = 1;  ///< above 0
};

/// Exit `code` where a name can't be a source's, stands twice, or a weight is not above 0; `where` begins the sentence.
void check_mixture(const std::vector<MixturePart>& parts, const std::string& where, Exit code);
/// Writes the manifest.json of a mixture, whose parts' folders hold token data already; how many training tokens.
/// Exit::data, and nothing is written, where they do not go together.
int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts);
/// The table's line: opens data.dir with the weights of data.mix, or else its own. Exit::data, Exit::usage.
std::unique_ptr<Data> open_mixture(const DataConfig& config);

}  // namespace lathe
