// Defines an order of additions with which the results of a step are bitwise equal for any number
// of processes.
//
// Values numbered 0, 1, 2, ... are the leaves of one binary tree: 0 + 1, 2 + 3, ..., then pairs of
// these sums, and so on. A block of 2^k values that begins at a multiple of 2^k is a subtree. Every
// process that sums this block gets bitwise the same result:
//
//            (0 1 2 3) + (4 5)
//           /         \        \              one process: it computes all sums
//      (0 1)   +   (2 3)        (4 5)         three processes: each sums one pair, and the sums of
//      0 + 1       2 + 3        4 + 5         the pairs are then added
//
// A running sum of n values keeps one partial sum for each bit that is set in n. There are
// therefore at most log2(n) + 1 partial sums.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lathe {

/// A running sum in the order of the tree.
template <class T>
class TreeSum {
 public:
  /// Adds the next value, which is the sum of `leaves` leaves. `leaves` must be a power of two and
  /// the same in each call. `plus(earlier, later)` returns the sum of its arguments, and may use
  /// the memory of either argument for the result.
  template <class Plus>
  void add(T value, Plus&& plus, int64_t leaves = 1) {
    Part part{std::move(value), leaves};
    while (!parts_.empty() && parts_.back().leaves == part.leaves) {
      part = {plus(std::move(parts_.back().sum), std::move(part.sum)), 2 * part.leaves};
      parts_.pop_back();
    }
    parts_.push_back(std::move(part));
  }
  /// Returns the sum of all values, and removes them. Partial sums are added in reverse order,
  /// beginning with the partial sum of the fewest leaves. There must be at least one value.
  template <class Plus>
  T finish(Plus&& plus) {
    T sum = std::move(parts_.back().sum);
    for (parts_.pop_back(); !parts_.empty(); parts_.pop_back())
      sum = plus(std::move(parts_.back().sum), std::move(sum));
    return sum;
  }
  bool empty() const { return parts_.empty(); }

 private:
  struct Part {
    T sum;
    int64_t leaves;
  };
  std::vector<Part> parts_;
};

}  // namespace lathe
