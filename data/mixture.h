// Mixtures: token data of several folders, of which windows are drawn by weights.
#pragma once

#include <memory>
#include <vector>

#include "data/data.h"
#include "data/mixture_manifest.h"

namespace lathe {

/// Writes the manifest.json of a mixture, whose parts' folders hold token data already; how many
/// training tokens. Exit::data, and nothing is written, where they do not go together.
int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts);
/// The table's line: opens data.dir with the weights of data.mix, or else its own. Exit::data,
/// Exit::usage.
std::unique_ptr<Data> open_mixture(const DataConfig& config);

}  // namespace lathe
