// Writes an offline HTML page about runs, with curves, tables, samples and configs.
#pragma once

#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"

namespace lathe {

/// Throws Exit::usage if the chart library is missing. The message names the package that contains
/// the library.
void check_chart_library();
/// Returns the page, which loads no other files. If `refresh_s` is not 0, the page reloads itself
/// after this many seconds. Divides long curves into `report_buckets` parts, draws the mean,
/// smallest and largest value of each part, and states that on the page.
///
/// `sweep` has an object for each key that a sweep varied. The object has the "key" and two lists
/// of points. The page draws "points", each [value, loss, name], as loss over value. The list
/// "without_loss" has [value, name, reason] for each other point.
std::string report_page(const std::vector<fs::path>& runs, int refresh_s = 0,
                        const Json& sweep = Json::array());

/// Number of parts of a long curve, about two per pixel of a wide screen.
constexpr size_t report_buckets = 1500;

/// A curve that was reduced by reduce().
struct Reduced {
  std::vector<int64_t> steps;           ///< last step of each part
  std::vector<double> mean, low, high;  ///< mean, smallest and largest finite value of each part
};
/// Divides a curve into `buckets` parts with almost the same number of values. Keeps a curve of at
/// most `buckets` values unchanged; then `low` and `high` are empty.
Reduced reduce(const std::vector<int64_t>& steps, const std::vector<double>& values,
               size_t buckets);

}  // namespace lathe
