// Opens preference data, which `lathe prepare --format preferences` makes. It consists of pairs of
// answers to the same prompt: a chosen answer and a rejected answer. A folder of preferences has
// the files of token data (data/tokens/manifest.h). The token ids of prompts have the bit
// token_mark, and the first id of each row (a prompt with one of its answers) has the bit
// token_begin.
#pragma once

#include <memory>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "preferences". Throws Exit::data for a folder
/// that can't be used; the message has the fault, its position and a remedy. Throws Exit::usage for
/// data.* keys that do not apply to preferences.
///
/// A batch has `batch_size` rows, two for each of its pairs: first all chosen answers, then the
/// rejected ones, each after its prompt and padded on the right (inputs 0, targets -100). Only the
/// tokens of answers are targets. A row has at most one token more than the window has positions.
/// If a row of a pair is longer, the same number of tokens is removed from the beginning of the
/// prompt in both rows, but at least one token of the prompt remains. If a row is still too long
/// after that, its end is also cut off.
///
/// data/tokens/padded.h describes the order of the pairs.
std::unique_ptr<Data> open_preferences(const DataConfig& config);

}  // namespace lathe
