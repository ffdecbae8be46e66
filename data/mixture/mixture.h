// Mixtures: token data of several folders, from which windows are drawn by weight.
#pragma once

#include <memory>
#include <vector>

#include "data/data.h"
#include "data/mixture/mixture_manifest.h"

namespace lathe {

/// Writes the manifest.json of a mixture whose parts' folders hold token data already. Returns the
/// number of training tokens. Throws Exit::data, and writes nothing, where the parts do not fit
/// together.
int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts);
/// Opens data.dir with the weights of data.mix, or, if that key is empty, with those of its
/// manifest. Throws Exit::data for a folder that can't be used, and Exit::usage for keys that do
/// not fit it. The table of data/data.cc lists this function for mixtures.
std::unique_ptr<Data> open_mixture(const DataConfig& config);

}  // namespace lathe
