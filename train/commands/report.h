// Writes one offline HTML page about runs: curves, tables, samples, configs.
#pragma once

#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Throws Exit::usage, with what to install, where the chart library is missing.
void check_chart_library();
/// Returns the page, which loads nothing from elsewhere. `refresh_s`: the page reloads itself after
/// so many seconds; 0: never. Reduces long curves to the mean, least and largest value of
/// `report_buckets` parts, and the page states that. `sweep`: for each key that a sweep varied, an
/// object with the "key" and its "points" [value, loss, name], which the page draws over the value.
std::string report_page(const std::vector<fs::path>& runs, int refresh_s = 0,
                        const Json& sweep = Json::array());

constexpr size_t report_buckets = 1500;  ///< about two per pixel of a wide screen

/// A curve in parts of equally many values, at most `buckets`: the last step, and the mean, least
/// and largest finite value of each part. A curve of at most `buckets` values is unchanged, and
/// has no `low` and `high`.
struct Reduced {
  std::vector<int64_t> steps;
  std::vector<double> mean, low, high;
};
Reduced reduce(const std::vector<int64_t>& steps, const std::vector<double>& values,
               size_t buckets);

}  // namespace lathe
