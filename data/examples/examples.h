// Declares the data kind for example sets: memory-mapped inputs and targets of any shape and type.
// data/examples/example_manifest.h describes the contents of a folder with example sets.
#pragma once

#include <memory>
#include <string>

#include "data/data.h"

namespace lathe {

/// Opens a folder whose manifest.json has "kind": "examples". If the data have a fault, throws
/// Exit::data with the fault, its position and a remedy. Throws Exit::usage for data.* keys that do
/// not apply to examples.
///
/// In training, a keyed permutation orders the examples of each epoch. Epochs are concatenated, so
/// a batch may contain examples of two epochs. Inputs are normalized with the mean and the scale of
/// the training split. Images are inputs with three sizes, [C, H, W]. They are shifted (data.crop)
/// and mirrored (data.flip) at random; pixels that move in are 0 before normalization. The random
/// numbers depend on the seed and on the sample's index, counted from the start of training.
/// Evaluation reads the validation split in order, without shifts and mirroring.
///
/// If data.folds is set, the validation split is appended to the training split, and a keyed
/// permutation, which is the same for every seed, divides all examples into folds. Each class is
/// divided separately, so the sizes of folds differ by at most one example, in total and in each
/// class. With folds, open_examples() computes the mean and the scale over the examples that remain
/// for training.
std::unique_ptr<Data> open_examples(const DataConfig& config);

}  // namespace lathe
