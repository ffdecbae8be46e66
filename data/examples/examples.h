// Example sets: inputs and targets of any shape and type, memory-mapped (their layout is in
// data/examples/example_manifest.h).
#pragma once

#include <memory>
#include <string>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "examples". Throws Exit::data, with the fault,
/// its position and a remedy, or Exit::usage for data.* keys that do not fit.
///
/// Training: a keyed permutation orders the examples of each epoch. Epochs are concatenated, so a
/// batch may contain examples of two epochs. Inputs are normalized with the training split's mean
/// and scale. Images (three sizes, [C, H, W]) are shifted (data.crop; pixels that move in are 0
/// before normalization) and mirrored (data.flip) by random numbers that depend on the seed and on
/// the number of the sample since the start of training. Evaluation reads the validation split in
/// order, unchanged.
///
/// data.folds splits all examples, those of the training split before those of the validation
/// split, by a keyed permutation that is the same for every seed. Each class is split separately,
/// so that folds differ by at most one example, in total and in each class. Mean and scale are then
/// computed here, over the examples that remain for training.
std::unique_ptr<Data> open_examples(const DataConfig& config);

}  // namespace lathe
