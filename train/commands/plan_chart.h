// `lathe plan CONFIG --chart`: the memory of a step by category, as bars.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/analysis/forecast.h"

namespace lathe {

/// Returns the memory of a forecast by category: "parameters" and so on, each with its bytes.
/// Parameters and optimizer state stay as they are made; the others are peaks of the steps, which
/// are reached at different times.
std::vector<std::pair<std::string, double>> memory_by_category(const Forecast& forecast);

/// Returns bytes in a unit that people read, such as "745.0 MB".
std::string human_bytes(double bytes);

/// Returns a chart of at most 80 columns with a bar for each category and setting. All bars have
/// one scale. `settings`: the name and the forecast of each.
std::string memory_chart(const std::vector<std::pair<std::string, Forecast>>& settings);

}  // namespace lathe
