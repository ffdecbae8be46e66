#include "data/prepare/fills.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/io/text.h"

namespace lathe {
namespace {

/// Returns the median: the middle number or, if the count is even, the mean of the two middle
/// numbers. Returns 0 if `numbers` is empty.
double median_of(std::vector<double>& numbers) {
  if (numbers.empty()) return 0;
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::nth_element(numbers.begin(), middle, numbers.end());
  if (numbers.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(numbers.begin(), middle)) / 2;
}

}  // namespace

void Fills::add(std::span<const double> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (std::isnan(inputs[i])) continue;
    means_[i] += (inputs[i] - means_[i]) / ++counts_[i];
    if (median_) numbers_[i].push_back(inputs[i]);
  }
}

std::vector<double> Fills::result() {
  size_t i = 0;
  for (const TableColumn& column : table_.columns) {
    if (column.width() == 1 && counts_[i] == 0)
      fail(Exit::data, "the column \"", printable_line(column.name), "\" (input ", i + 1,
           ") is empty in every training example; leave it out with --drop");
    i += static_cast<size_t>(column.width());
  }

  if (!median_) return means_;
  std::vector<double> medians;
  for (auto& numbers : numbers_) medians.push_back(median_of(numbers));
  return medians;
}

}  // namespace lathe
