// How a run's model encodes new examples.
#pragma once

#include "train/store/run_state.h"

namespace lathe {

/// Returns how the inputs of a run were prepared. For checkpoints of earlier builds, and for those
/// with very many statistics, only the data folder has this information. Throws Exit::data if that
/// folder is missing or has other data.
ExampleEncoding encoding_of(const fs::path& run, const RunState& state, const RunConfig& config);

/// Throws Exit::data if the examples in `folder`, whose encoding is `theirs`, have other classes or
/// input columns than those that a model was trained on, whose encoding is `ours`. Sizes must be
/// equal; other statistics are allowed. The message ends with `remedy`.
void check_compatible_encoding(const ExampleEncoding& ours, const ExampleEncoding& theirs,
                               const std::string& folder, const char* remedy);

}  // namespace lathe
