// Declares the normalization (x - mean) / scale. The mean and the scale (a standard deviation) are
// computed over the training examples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lathe {

/// The mean and the scale of each group of elements.
struct Normalization {
  std::vector<double> mean, scale;
  bool operator==(const Normalization&) const = default;
};

/// A division of an example's elements into groups. The elements of a group share a mean and a
/// scale.
struct Groups {
  int64_t count, elements;  ///< number of groups, and number of elements in each group; the
                            ///< elements of a group are contiguous
};
/// Returns the groups for examples of these sizes. With three or more dimensions, such as [C, H,
/// W], each channel is a group. With fewer dimensions, each element is a group.
Groups groups_of(const std::vector<int64_t>& sizes);

/// Writes (x - mean) / scale for each element x of an example to `out`.
void normalize(const Normalization& statistics, Groups groups, std::span<const double> example,
               float* out);

/// Computes the mean and the standard deviation of each group over all examples, in one pass (Chan,
/// Golub and LeVeque 1979). The standard deviation is sqrt(sum (x - mean)^2 / n). If all elements
/// of a group are equal in all examples, the mean is exactly this value and the scale is 1.
class Statistics {
 public:
  explicit Statistics(Groups groups);
  /// Adds one example, which consists of count * elements numbers.
  void add(const double* example);
  /// Returns the statistics of the examples that were added. There must be at least one example.
  /// Throws Exit::data if a mean or a standard deviation overflows.
  Normalization result() const;

 private:
  Groups groups_;
  double n_ = 0;  // number of elements of each group so far
  // mean_: the means of the groups; squares_: the sums of squared deviations from the means
  std::vector<double> mean_, squares_;
};

}  // namespace lathe
