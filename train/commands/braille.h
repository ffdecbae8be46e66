// Draws curves as text: each character has 2 x 4 dots (Unicode's braille patterns).
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// A curve with ascending x. Values that are not finite are skipped.
struct BrailleCurve {
  std::vector<double> x, y;
};

/// Returns `height` lines of at most `width` columns, 20 x 4 at least: the curves, with the least
/// and the largest y at the left and x below. Where many values fall into one column of dots, all
/// dots from the least to the largest are set. `color` draws each curve in a color of its own
/// (curve_color).
std::vector<std::string> braille_plot(const std::vector<BrailleCurve>& curves, size_t width,
                                      size_t height, bool color);

/// Returns the control sequence of curve i's color.
std::string curve_color(size_t i);

}  // namespace lathe
