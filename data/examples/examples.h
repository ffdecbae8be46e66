// Example sets: memory-mapped inputs and targets of any shape and type.
// data/examples/example_manifest.h describes their layout.
#pragma once

#include <memory>
#include <string>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "examples". Throws Exit::data, with the fault,
/// its position and a remedy, or Exit::usage for data.* keys that do not apply to examples.
///
/// Training: a keyed permutation orders the examples of each epoch. Epochs are concatenated, so a
/// batch may contain examples of two epochs. Inputs are normalized with the training split's mean
/// and scale. Images (three sizes, [C, H, W]) are shifted (data.crop; pixels that move in are 0
/// before normalization) and mirrored (data.flip) by random numbers that depend on the seed and on
/// the number of the sample since the start of training. Evaluation reads the validation split in
/// order, unchanged.
///
/// If data.folds is set, the training split and then the validation split are concatenated, and a
/// keyed permutation, which is the same for every seed, divides all examples into folds. Each class
/// is divided separately, so folds differ by at most one example, in total and in each class. This
/// function then computes mean and scale over the examples that remain for training.
std::unique_ptr<Data> open_examples(const DataConfig& config);

}  // namespace lathe
