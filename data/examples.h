// Example sets: inputs and targets of any shape and type, memory-mapped (data/example_manifest.h
// says how they lie).
#pragma once

#include <memory>
#include <string>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "examples". Exit::data with what, where and what
/// to do; Exit::usage for data.* keys that do not fit it.
///
/// Training: a keyed permutation orders the examples of an epoch, epochs are concatenated, so a
/// batch may cross an edge. Inputs are normalized with the training split's mean and scale; images
/// (three sizes, [C, H, W]) are shifted (data.crop: what moves in is 0 before normalization) and
/// mirrored (data.flip) by numbers keyed by the seed and the number of the sample since the start
/// of training. Evaluation goes through the validation split in order, unchanged.
///
/// data.folds splits all examples, the training split's before the validation split's, by a keyed
/// permutation that is the same for every seed, of each class on its own, so that folds differ by
/// at most one example, in all and of each class. Mean and scale are then computed here, over what
/// is left for training.
std::unique_ptr<Data> open_examples(const DataConfig& config);

}  // namespace lathe
