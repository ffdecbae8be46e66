// Writes and opens mixtures: token data of several folders, from which windows are drawn by weight.
#pragma once

#include <memory>
#include <vector>

#include "data/data.h"
#include "data/mixture/mixture_manifest.h"

namespace lathe {

/// Writes the manifest.json of a mixture. The folders of its parts must hold token data already.
/// Returns the number of training tokens. Throws Exit::data, and writes nothing, if a part can't be
/// opened or holds preference pairs, or if the parts have different tokenizers.
int64_t write_mixture(const fs::path& folder, const std::vector<MixturePart>& parts);
/// Opens the mixture in data.dir with the sources and weights of data.mix or, if that key is empty,
/// with those of the manifest. Throws Exit::data for a folder that can't be used, and Exit::usage
/// for config keys that do not apply to the mixture.
std::unique_ptr<Data> open_mixture(const DataConfig& config);

}  // namespace lathe
