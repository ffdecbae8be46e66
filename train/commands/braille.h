// Draws curves as text: each character has 2 x 4 dots (Unicode's braille patterns).
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// A curve whose x values are in ascending order. Points with a y that is not finite are skipped.
struct BrailleCurve {
  std::vector<double> x, y;
};

/// Draws the curves in `height` lines of at most `width` columns. Raises `height` to at least 4,
/// and `width` to at least 20. Shows the smallest and the largest y at the left, and the smallest
/// and the largest x below. Connects consecutive values by lines. If several values fall into one
/// column of dots, sets all dots from the smallest to the largest value. If `color` is true, draws
/// each curve in the color of curve_color().
std::vector<std::string> braille_plot(const std::vector<BrailleCurve>& curves, size_t width,
                                      size_t height, bool color);

/// Returns the terminal's control sequence for the color of curve i.
std::string curve_color(size_t i);

}  // namespace lathe
