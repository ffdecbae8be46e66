// One offline HTML page about runs: curves, tables, samples, configs.
#pragma once

#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Exit::usage, with what to install, where the chart library is not there.
void check_chart_library();
/// The page, of which nothing is loaded from elsewhere. `refresh_s`: the page reloads itself
/// after so many seconds; 0: never. Long curves are reduced to the mean, least and largest value of
/// `report_buckets` parts, which the page says.
std::string report_page(const std::vector<fs::path>& runs, int refresh_s = 0);

constexpr size_t report_buckets = 1500;  ///< two a pixel of a wide screen

/// Of a curve parts of equally many values, `buckets` at most: the last step, mean, least and
/// largest finite value of each. A curve of no more values than that is itself, and has no `low`
/// and `high`.
struct Reduced {
  std::vector<int64_t> steps;
  std::vector<double> mean, low, high;
};
Reduced reduce(const std::vector<int64_t>& steps, const std::vector<double>& values,
               size_t buckets);

}  // namespace lathe
