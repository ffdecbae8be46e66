// Normalization: (x - mean) / scale with the mean and the standard deviation of the training
// examples.
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
  int64_t count, elements;  ///< number of groups, and of elements in each; these are contiguous
};
/// Returns the groups for examples of these sizes. With three or more dimensions ([C, H, W]) each
/// channel is a group; with fewer, each element is.
Groups groups_of(const std::vector<int64_t>& sizes);

/// Writes (x - mean) / scale of each element x of an example to `out`.
void normalize(const Normalization& statistics, Groups groups, std::span<const double> example,
               float* out);

/// Computes the mean and standard deviation of each group over examples, in one pass (Chan, Golub
/// and LeVeque 1979). The standard deviation is that of the population, sqrt(sum (x - mean)^2 / n).
/// If all elements of a group are equal in all examples, the mean is exactly that value and the
/// scale is 1.
class Statistics {
 public:
  explicit Statistics(Groups groups);
  /// Adds one example: count * elements numbers.
  void add(const double* example);
  /// Returns the statistics of the examples that were added; there must be at least one.
  /// Throws Exit::data if a mean or a standard deviation overflows.
  Normalization result() const;

 private:
  Groups groups_;
  double n_ = 0;  // elements of each group so far
  // squares_: sums of squared deviations from the mean
  std::vector<double> mean_, squares_;
};

}  // namespace lathe
