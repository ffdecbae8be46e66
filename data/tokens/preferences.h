// Preferences: pairs of answers to one prompt, of which one was chosen (`lathe prepare --format
// preferences`). A folder of preferences has the files of token data (data/tokens/manifest.h). Ids
// of prompts have the bit token_mark, and the first id of each row (a prompt with one of its
// answers) has the bit token_begin.
#pragma once

#include <memory>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "preferences". Throws Exit::data, with the fault,
/// its position and a remedy, or Exit::usage for data.* keys that do not apply to preferences.
///
/// A batch has `batch_size` rows, two for each of its pairs: first all chosen answers, then the
/// rejected ones, each after its prompt and padded on the right (inputs 0, targets -100). Only the
/// tokens of answers are targets. If a row of a pair is longer than the window, the same number of
/// tokens is removed from the beginning of the prompt in both rows. If a row is still too long, its
/// end is cut off, too.
///
/// The order of pairs is that of data/tokens/padded.h.
std::unique_ptr<Data> open_preferences(const DataConfig& config);

}  // namespace lathe
