#include "train/commands/braille.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/io/text.h"

namespace lathe {
namespace {

constexpr size_t label_width = 9;
constexpr const char* plain = "\033[39m";

/// A grid of dots whose origin is at the bottom left.
class Canvas {
 public:
  Canvas(size_t columns, size_t rows)
      : columns_(columns), rows_(rows), dots_(columns * rows, 0), owner_(columns * rows, 0) {}
  size_t width() const { return 2 * columns_; }
  size_t height() const { return 4 * rows_; }
  void set(size_t x, size_t y, size_t curve) {
    // In a character, Unicode numbers the dots of the left column 1 2 3 7 from top to bottom, and
    // the dots of the right column 4 5 6 8.
    constexpr uint8_t bit[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    const size_t down = height() - 1 - y, cell = down / 4 * columns_ + x / 2;
    dots_[cell] = static_cast<uint8_t>(dots_[cell] | bit[x % 2][down % 4]);
    owner_[cell] = curve;
  }
  std::string line(size_t row, bool color) const {
    std::string text;
    size_t last = SIZE_MAX;
    for (size_t i = row * columns_; i < (row + 1) * columns_; ++i) {
      if (color && dots_[i] != 0 && owner_[i] != last) text += curve_color(last = owner_[i]);
      // Write each pattern in UTF-8; the patterns begin at U+2800. Write an empty pattern as a
      // space, which every font has.
      if (dots_[i] == 0)
        text += ' ';
      else
        text += {'\xe2', static_cast<char>(0xa0 | dots_[i] >> 6),
                 static_cast<char>(0x80 | (dots_[i] & 0x3f))};
    }
    return text + (last != SIZE_MAX ? plain : "");
  }

 private:
  size_t columns_, rows_;
  std::vector<uint8_t> dots_;
  std::vector<size_t> owner_;  // for each cell, the index of the last curve that set a dot in it
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return !(low <= high); }
  /// Returns the index of the dot for v on an axis of `dots` dots.
  size_t dot(double v, size_t dots) const {
    // Use halves, because the difference of two finite numbers may overflow to infinity.
    const double span = high / 2 - low / 2;
    const double share = span > 0 ? (v / 2 - low / 2) / span : 0.5;
    return static_cast<size_t>(
        std::clamp(share * static_cast<double>(dots), 0.0, static_cast<double>(dots - 1)));
  }
};

void draw(Canvas& canvas, const BrailleCurve& curve, const Range& xs, const Range& ys,
          size_t index) {
  size_t last_x = SIZE_MAX, last_y = 0;
  for (size_t i = 0; i < curve.y.size(); ++i) {
    if (!std::isfinite(curve.y[i])) continue;
    const size_t x = xs.dot(curve.x[i], canvas.width()), y = ys.dot(curve.y[i], canvas.height());
    if (last_x == SIZE_MAX) {
      last_x = x;
      last_y = y;
    }

    // Connect the last dot with this dot: in each column, set the dots between the heights of the
    // line at the column's two edges.
    for (size_t column = last_x; column <= x; ++column) {
      const auto at = [&](double c) {
        const double share =
            x == last_x
                ? 1
                : std::clamp((c - static_cast<double>(last_x)) / static_cast<double>(x - last_x),
                             0.0, 1.0);
        return static_cast<double>(last_y) +
               share * (static_cast<double>(y) - static_cast<double>(last_y));
      };

      double a = at(static_cast<double>(column) - 0.5), b = at(static_cast<double>(column) + 0.5);
      if (x == last_x) {
        a = static_cast<double>(last_y);
        b = static_cast<double>(y);
      }

      for (auto row = static_cast<size_t>(std::min(a, b));
           row <= static_cast<size_t>(std::max(a, b)); ++row)
        canvas.set(column, row, index);
    }

    last_x = x;
    last_y = y;
  }
}

std::string label(double v) {
  std::string text;
  for (int digits = 4; text.empty() || text.size() >= label_width; --digits)
    text = format("%.*g", digits, v);
  return std::string(label_width - 1 - text.size(), ' ') + text + " ";
}

}  // namespace

std::string curve_color(size_t i) {
  constexpr const char* codes[]{"\033[34m", "\033[33m", "\033[32m",
                                "\033[35m", "\033[36m", "\033[31m"};
  return codes[i % std::size(codes)];
}

std::vector<std::string> braille_plot(const std::vector<BrailleCurve>& curves, size_t width,
                                      size_t height, bool color) {
  width = std::max<size_t>(width, 20);
  height = std::max<size_t>(height, 4);

  Range xs, ys;
  for (const BrailleCurve& c : curves) {
    for (size_t i = 0; i < c.y.size(); ++i) {
      if (std::isfinite(c.y[i])) {
        xs.add(c.x[i]);
        ys.add(c.y[i]);
      }
    }
  }

  const size_t columns = width - label_width, rows = height - 1;
  if (xs.empty()) {
    // If a plot has no values, it keeps its height, so that the lines below it stay in position.
    std::vector<std::string> lines(height);
    lines[0].assign(label_width, ' ');
    lines[0] += "nothing yet";
    return lines;
  }

  Canvas canvas(columns, rows);
  for (size_t i = 0; i < curves.size(); ++i) draw(canvas, curves[i], xs, ys, i);

  std::vector<std::string> lines;
  for (size_t row = 0; row < rows; ++row) {
    const std::string side = row == 0          ? label(ys.high)
                             : row == rows - 1 ? label(ys.low)
                                               : std::string(label_width, ' ');
    lines.push_back(side + canvas.line(row, color));
  }

  const auto end = [](double x) { return format(x == std::round(x) ? "%.10g" : "%.4g", x); };
  const std::string first = end(xs.low), last = end(xs.high);
  const size_t gap =
      columns > first.size() + last.size() ? columns - first.size() - last.size() : 1;

  lines.push_back(
      (std::string(label_width, ' ') + first + std::string(gap, ' ') + last).substr(0, width));
  return lines;
}

}  // namespace lathe
