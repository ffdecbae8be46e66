#include "train/step/gradient_sum.h"

#include <utility>

#include "autograd/node.h"

namespace lathe {

void GradientSum::begin(int64_t n, size_t i) {
  if (!in_sequence_ && n > 0 && n % 2 == 0) move_to_tree_sum(i);
}

void GradientSum::finish(size_t i) {
  if (pairs_[i].empty()) return;
  // If the number of micro-batches is odd, the last pair is a single micro-batch. This pair is
  // added first, as the smallest block of the tree.
  move_to_tree_sum(i);
  parameters_[i].parameter.leaf().grad = pairs_[i].finish(add_gradients);
}

void GradientSum::move_to_tree_sum(size_t i) {
  pairs_[i].add(std::exchange(parameters_[i].parameter.leaf().grad, at::Tensor()), add_gradients);
}

}  // namespace lathe
