// Computes the numbers that replace empty cells of a table. Includes no LibTorch header.
#pragma once

#include <span>
#include <vector>

#include "data/examples/example_encoding.h"

namespace lathe {

/// Computes the mean or median of each input over the training examples in which the input's cell
/// is not empty.
class Fills {
 public:
  /// Computes medians if `median` is true, and otherwise means. `table` must outlive this object.
  Fills(const TableFormat& table, bool median)
      : table_(table),
        median_(median),
        counts_(static_cast<size_t>(table.width())),
        means_(counts_.size()),
        numbers_(counts_.size()) {}
  /// Adds a training example: table.width() inputs, with NaN for an empty cell.
  void add(std::span<const double> inputs);
  /// Returns a number for each input. Throws Exit::data for a column that is empty in every added
  /// example.
  std::vector<double> result();

 private:
  const TableFormat& table_;
  bool median_;
  std::vector<double> counts_, means_;
  std::vector<std::vector<double>> numbers_;  // all numbers of each input; unused for means
};

}  // namespace lathe
