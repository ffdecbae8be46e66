#include "train/commands/plan_chart.h"

#include <algorithm>
#include <cmath>

#include "core/io/text.h"

namespace lathe {
namespace {

constexpr const char* highest = "peak";

/// A row of the chart: its name, and its bytes with each setting.
struct ChartRow {
  std::string name;
  std::vector<double> bytes;
};

std::vector<ChartRow> rows_of(const std::vector<std::pair<std::string, Forecast>>& settings) {
  std::vector<ChartRow> rows;
  for (const auto& [setting, forecast] : settings) {
    auto parts = memory_by_category(forecast);
    parts.emplace_back(highest, static_cast<double>(forecast.peak_rss()));
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == rows.size()) rows.push_back({parts[i].first, {}});
      rows[i].bytes.push_back(parts[i].second);
    }
  }
  std::erase_if(rows, [](const ChartRow& row) {
    return std::all_of(row.bytes.begin(), row.bytes.end(), [](double b) { return b == 0; });
  });
  return rows;
}

}  // namespace

std::string human_bytes(double bytes) {
  const char* units[]{"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return format("%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
}

std::vector<std::pair<std::string, double>> memory_by_category(const Forecast& forecast) {
  const DryStep& d = forecast.dry;
  const auto made = [&](Memory m) {
    return static_cast<double>(d.made.used[static_cast<size_t>(m)]);
  };
  const auto peak = [&](Memory m) {
    return static_cast<double>(d.peaks.peak[static_cast<size_t>(m)]);
  };
  return {{"parameters", made(Memory::parameters) + static_cast<double>(d.mapped_bytes)},
          {"casts", peak(Memory::casts)},
          {"optimizer", made(Memory::optimizer)},
          {"gradients", peak(Memory::gradients)},
          {"activations", peak(Memory::activations)},
          {"data", peak(Memory::data)},
          {"checkpoints", static_cast<double>(d.save_copy_bytes)},
          {"program", static_cast<double>(forecast.program_bytes)}};
}

std::string memory_chart(const std::vector<std::pair<std::string, Forecast>>& settings) {
  constexpr int name_width = 18, bar_width = 48;
  const std::vector<ChartRow> rows = rows_of(settings);
  double most = 0;
  for (const ChartRow& row : rows) most = std::max(most, *std::ranges::max_element(row.bytes));

  // A bar repeats the character of its setting. With more than two settings, the two characters
  // alternate.
  constexpr const char letters[] = "#=";
  std::string text;
  for (size_t s = 0; s < settings.size(); ++s)
    text += format("%c  %s\n", letters[s % 2], settings[s].first.c_str());
  text += "\n";

  for (const ChartRow& row : rows) {
    for (size_t s = 0; s < row.bytes.size(); ++s) {
      const double share = row.bytes[s] / most;
      const auto length = static_cast<size_t>(std::lround(bar_width * share));
      // Give every amount above 0 a bar that is visible.
      const std::string bar(row.bytes[s] > 0 ? std::max<size_t>(length, 1) : 0, letters[s % 2]);
      text += format("%-*s%-*s %9s\n", name_width, s == 0 ? row.name.c_str() : "", bar_width,
                     bar.c_str(), human_bytes(row.bytes[s]).c_str());
    }
  }
  return text;
}

}  // namespace lathe
