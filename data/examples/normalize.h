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

/// The groups of an example's elements: those of a group share a mean and a scale.
struct Groups {
  int64_t count, elements;  ///< groups, and elements of each, which are contiguous
};
/// Returns the groups for examples of these sizes. With three or more dimensions ([C, H, W]) each
/// channel is a group; with fewer, each element is.
Groups groups_of(const std::vector<int64_t>& sizes);

/// Writes (x - mean) / scale of each element of an example.
void normalize(const Normalization& statistics, Groups groups, std::span<const double> example,
               float* out);

/// Mean and standard deviation of each group over examples, in one pass (Chan, Golub and LeVeque
/// 1979). The standard deviation is that of the population, sqrt(sum (x - mean)^2 / n). A group
/// whose elements never change has exactly their value as mean, and scale 1.
class Statistics {
 public:
  explicit Statistics(Groups groups);
  /// Adds one example: count * elements numbers.
  void add(const double* example);
  /// Returns the statistics of the examples that were added, of which there must be one or more.
  /// Throws Exit::data if a mean or a standard deviation overflows.
  Normalization result() const;

 private:
  Groups groups_;
  double n_ = 0;
  std::vector<double> mean_, squares_;
};

}  // namespace lathe
