// Draws the chart of `lathe plan CONFIG --chart`: the memory of a step by category, as bars.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "train/analysis/forecast.h"

namespace lathe {

/// Returns the memory of a forecast by category, as pairs of a name and bytes. The amounts of
/// "parameters", "optimizer", "checkpoints" (the copy that a background save writes) and "program"
/// are constant. The amounts of the other categories are peaks during the steps. These peaks are
/// reached at different times, so the sum of all amounts is not the peak of the process.
std::vector<std::pair<std::string, double>> memory_by_category(const Forecast& forecast);

/// Returns bytes as a number with a decimal unit, such as "745.0 MB".
std::string human_bytes(double bytes);

/// Returns a chart with a line for the name of each setting, a line with a bar for each category
/// and setting, and a line with a bar for the peak of each setting. Leaves out categories that take
/// no memory. Lines with bars have at most 80 columns, and all bars have the same scale. `settings`
/// has a name and a forecast for each setting.
std::string memory_chart(const std::vector<std::pair<std::string, Forecast>>& settings);

}  // namespace lathe
