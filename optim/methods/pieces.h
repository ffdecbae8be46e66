// Sums over a tensor on all threads, whose order does not depend on how many there are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/kernels/scratch.h"
#include "core/parallel.h"

namespace lathe {

/// f(piece, begin, end) for pieces of [0, n) of `size` elements each, on all threads.
template <class F>
void each_piece(int64_t n, int64_t size, F&& f) {
  parallel_for(0, (n + size - 1) / size, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i, i * size, std::min(n, (i + 1) * size));
  });
}

/// The same of several tensors of sizes[0], sizes[1], ... elements in one loop, so that no thread waits at the end of
/// each: f(which, piece, begin, end), pieces counted through all tensors.
template <class F>
void each_piece_of(const std::vector<int64_t>& sizes, int64_t size, F&& f) {
  std::vector<int64_t> first{0};  // piece of each tensor
  for (const int64_t n : sizes) first.push_back(first.back() + divide_up(n, size));
  parallel_tasks(
      first.back(),
      [&](int64_t piece) {
        const auto which = std::upper_bound(first.begin(), first.end(), piece) - first.begin() - 1;
        const auto t = static_cast<size_t>(which);
        const int64_t begin = (piece - first[t]) * size;
        f(t, piece, begin, std::min(sizes[t], begin + size));
      },
      [] {});
}

/// The sum of f(begin, end) over such pieces.
template <class F>
double piece_sum(int64_t n, int64_t size, F&& f) {
  std::vector<double> sums(static_cast<size_t>((n + size - 1) / size));
  each_piece(n, size, [&](int64_t i, int64_t begin, int64_t end) { sums[static_cast<size_t>(i)] = f(begin, end); });
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

}  // namespace lathe
