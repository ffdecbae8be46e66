#include "data/examples/normalize.h"

#include <cmath>

#include "core/error.h"

namespace lathe {

Groups groups_of(const std::vector<int64_t>& sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return sizes.size() >= 3 ? Groups{sizes[0], numel / sizes[0]} : Groups{numel, 1};
}

void normalize(const Normalization& statistics, Groups groups, std::span<const double> example,
               float* out) {
  for (size_t g = 0, j = 0; g < statistics.mean.size(); ++g) {
    const double mean = statistics.mean[g], scale = statistics.scale[g];
    for (const size_t end = j + static_cast<size_t>(groups.elements); j < end; ++j)
      out[j] = static_cast<float>((example[j] - mean) / scale);
  }
}

Statistics::Statistics(Groups groups)
    : groups_(groups),
      mean_(static_cast<size_t>(groups.count)),
      squares_(static_cast<size_t>(groups.count)) {}

// Computes the mean and the sum of squared deviations of each group in this example, then merges
// them with the values of the previous examples.
void Statistics::add(const double* example) {
  const auto m = static_cast<double>(groups_.elements);
  const double share = m / (n_ + m), weight = n_ * share;
  for (size_t g = 0; g < mean_.size(); ++g, example += groups_.elements) {
    double mean = example[0], squares = 0;
    if (groups_.elements > 1) {
      double sum = 0;
      for (int64_t i = 0; i < groups_.elements; ++i)
        sum += example[i] - example[0];  // exactly 0 if all elements are equal
      mean += sum / m;
      for (int64_t i = 0; i < groups_.elements; ++i)
        squares += (example[i] - mean) * (example[i] - mean);
    }

    const double change = mean - mean_[g];
    mean_[g] = n_ == 0 ? mean : mean_[g] + change * share;
    squares_[g] += squares + (n_ == 0 ? 0 : change * change * weight);
  }
  n_ += m;
}

Normalization Statistics::result() const {
  Normalization r{mean_, std::vector<double>(mean_.size(), 1)};
  for (size_t g = 0; g < mean_.size(); ++g) {
    const double scale = std::sqrt(squares_[g] / n_);
    if (!std::isfinite(mean_[g]) || !std::isfinite(scale)) {
      fail(Exit::data, "the values of input or target ", g + 1,
           " are too large for their mean and standard deviation in float64; scale them, or leave "
           "them out");
    }
    if (scale > 0) r.scale[g] = scale;
  }
  return r;
}

}  // namespace lathe
