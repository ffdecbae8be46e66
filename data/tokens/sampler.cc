#include "data/tokens/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/rng.h"

namespace lathe {

// Every epoch has as many windows as fit after the largest offset, so the number of windows is
// constant. If the data are too short for a window at every offset in [0, block_size), an epoch has
// one window and a smaller range of offsets.
WindowSampler::WindowSampler(int64_t tokens, int64_t block_size, uint64_t seed)
    : block_size_(block_size),
      windows_(std::max<int64_t>(1, (tokens - block_size) / block_size)),
      seed_(seed) {
  offset_range_ = static_cast<uint64_t>(std::min(block_size, tokens - windows_ * block_size));
}

int64_t WindowSampler::start_of(int64_t n) const {
  const auto epoch = static_cast<uint64_t>(n / windows_),
             index = static_cast<uint64_t>(n % windows_);
  const auto offset =
      philox(counter(epoch, 0), make_key(seed_, hash_name("data/offset")))[0] % offset_range_;
  const Permutation order(static_cast<uint64_t>(windows_),
                          make_key(seed_, hash_name("data/order") + epoch));
  return static_cast<int64_t>(offset) + static_cast<int64_t>(order(index)) * block_size_;
}

namespace {
constexpr int64_t round_windows = 65536;
}

MixtureSampler::MixtureSampler(const std::vector<double>& weights, uint64_t seed) : seed_(seed) {
  // Divide by the largest weight, since the sum of large weights may overflow.
  const double most = *std::max_element(weights.begin(), weights.end());
  double all = 0;
  for (const double w : weights) all += w / most;
  std::vector<int64_t> windows;
  for (const double w : weights)
    windows.push_back(w > 0 ? std::max<int64_t>(1, std::llround(w / most / all * round_windows))
                            : 0);
  // Rounding leaves a few windows too many or too few; the largest source absorbs the difference.
  *std::max_element(windows.begin(), windows.end()) +=
      round_windows - std::accumulate(windows.begin(), windows.end(), int64_t{0});
  for (int64_t end = 0; const int64_t n : windows) ends_.push_back(end += n);
}

MixtureSampler::Place MixtureSampler::operator()(int64_t n) const {
  const int64_t round = n / round_windows;
  const Permutation order(round_windows,
                          make_key(seed_, hash_name("data/mix") + static_cast<uint64_t>(round)));
  const auto at = static_cast<int64_t>(order(static_cast<uint64_t>(n % round_windows)));
  const auto source =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
  const int64_t begin = source == 0 ? 0 : ends_[source - 1];
  return {source, round * (ends_[source] - begin) + at - begin};
}

int64_t spread_index(int64_t i, int64_t count, int64_t size) {
  // Compute part * size / count without a product that could overflow.
  const auto begin_of = [&](int64_t part) {
    return part * (size / count) + part * (size % count) / count;
  };
  const int64_t begin = begin_of(i);
  const auto r =
      philox(counter(static_cast<uint64_t>(i), 0), make_key(0, hash_name("data/validation")));
  const uint64_t random = uint64_t{r[1]} << 32 | r[0];
  return begin + static_cast<int64_t>(random % static_cast<uint64_t>(begin_of(i + 1) - begin));
}

}  // namespace lathe
