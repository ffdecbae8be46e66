// Declares functions for the encoding with which a run's model encodes new examples.
#pragma once

#include "train/store/run_state.h"

namespace lathe {

/// Returns how the inputs of a run were prepared. For checkpoints of earlier builds, and for
/// checkpoints with very many statistics, only the data folder has this information. Throws
/// Exit::data if that folder is missing or has other data.
ExampleEncoding encoding_of(const fs::path& run, const RunState& state, const RunConfig& config);

/// Compares the examples in `folder`, whose encoding is `theirs`, with the examples that a model
/// was trained on, whose encoding is `ours`. Throws Exit::data if the names of classes or of input
/// columns differ. Names of columns are compared only if both encodings have them. The caller must
/// ensure that sizes are equal; statistics may differ. The message ends with `remedy`.
void check_compatible_encoding(const ExampleEncoding& ours, const ExampleEncoding& theirs,
                               const std::string& folder, const char* remedy);

}  // namespace lathe
