// Normalization: (x - mean) / scale with the mean and the standard deviation of the training
// examples.
#pragma once

#include <cstdint>
#include <vector>

namespace lathe {

/// One number for each group of elements: every channel of an image, every element of anything
/// else.
struct Normalisation {
  std::vector<double> mean, scale;
};

/// How an example of these sizes is grouped: three or more dimensions are channels first ([C, H,
/// W]), each channel a group; of fewer, each element is one.
struct Groups {
  int64_t count, elements;  ///< groups, and elements of each, which lie together
};
/// The features that share a mean and a deviation: a picture's channels [C, H, W], else each
/// feature alone.
Groups groups_of(const std::vector<int64_t>& sizes);

/// Mean and standard deviation of each group over examples, in one pass (Chan, Golub and LeVeque
/// 1979), the standard deviation being that of the population, sqrt(sum (x - mean)^2 / n). Elements
/// that never change have exactly their value as mean, and scale 1.
class Statistics {
 public:
  explicit Statistics(Groups groups);
  /// One example: count * elements numbers.
  void add(const double* example);
  /// Of all that was added.
  Normalisation result() const;

 private:
  Groups groups_;
  double n_ = 0;
  std::vector<double> mean_, squares_;
};

}  // namespace lathe
