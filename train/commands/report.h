// Writes one offline HTML page about runs: curves, tables, samples, configs.
#pragma once

#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Throws Exit::usage if the chart library is missing. The message names the package to install.
void check_chart_library();
/// Returns the page, which loads nothing from elsewhere. If `refresh_s` is not 0, the page reloads
/// itself after this many seconds. Reduces long curves to the mean, smallest and largest value of
/// `report_buckets` parts, and the page states that.
///
/// `sweep` has an object for each key that a sweep varied: the "key", its "points" [value, loss,
/// name], which the page draws over the value, and the points "without_loss" [value, name, reason].
std::string report_page(const std::vector<fs::path>& runs, int refresh_s = 0,
                        const Json& sweep = Json::array());

constexpr size_t report_buckets = 1500;  ///< about two per pixel of a wide screen

/// A curve that was reduced by reduce().
struct Reduced {
  std::vector<int64_t> steps;           ///< the last step of each part
  std::vector<double> mean, low, high;  ///< mean, smallest and largest finite value of each part
};
/// Divides a curve into `buckets` parts with almost the same number of values. A curve of at most
/// `buckets` values stays unchanged, and has no `low` and `high`.
Reduced reduce(const std::vector<int64_t>& steps, const std::vector<double>& values,
               size_t buckets);

}  // namespace lathe
