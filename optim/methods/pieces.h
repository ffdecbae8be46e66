// Divides tensors into pieces, which all threads process. piece_sum() adds the sums of the pieces
// in an order that does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/kernels/scratch.h"

namespace lathe {

/// Divides tensors, of which tensor i has sizes[i] elements, into pieces of `size` elements, and
/// calls f(which, piece, begin, end) for elements [begin, end) of tensor `which`. All tensors share
/// one parallel loop, so that no thread waits at the end of each tensor. `piece` is the index of
/// the piece among the pieces of all tensors.
template <class F>
void each_piece_of(const std::vector<int64_t>& sizes, int64_t size, F&& f) {
  std::vector<int64_t> first{0};  // index of the first piece of each tensor
  for (const int64_t n : sizes) first.push_back(first.back() + divide_up(n, size));
  parallel_tasks(
      first.back(),
      [&](int64_t piece) {
        const auto which = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), piece) -
                                               first.begin()) -
                           1;
        const int64_t begin = (piece - first[which]) * size;
        f(which, piece, begin, std::min(sizes[which], begin + size));
      },
      [] {});
}

/// Calls f(piece, begin, end) for the pieces of one tensor.
template <class F>
void each_piece(int64_t n, int64_t size, F&& f) {
  each_piece_of({n}, size,
                [&](size_t, int64_t piece, int64_t begin, int64_t end) { f(piece, begin, end); });
}

/// Returns the sum of f(begin, end) over the pieces of one tensor, in the order of pieces.
template <class F>
double piece_sum(int64_t n, int64_t size, F&& f) {
  std::vector<double> sums(static_cast<size_t>((n + size - 1) / size));
  each_piece(n, size, [&](int64_t i, int64_t begin, int64_t end) {
    sums[static_cast<size_t>(i)] = f(begin, end);
  });
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace lathe
