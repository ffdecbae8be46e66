// Curves as text: each character has 2 x 4 dots (Unicode's braille patterns).
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// One curve; x ascending. What is not finite is passed over.
struct BrailleCurve {
  std::vector<double> x, y;
};

/// `height` lines of at most `width` columns, 20 x 4 at least: the curves with the least and
/// largest y at the left and x below. Where many values fall on one column of dots, all from the
/// least to the largest are set. `colour`: each curve in a color of its own (curve_colour).
std::vector<std::string> braille_plot(const std::vector<BrailleCurve>& curves, size_t width,
                                      size_t height, bool colour);

/// The control sequence of curve i's color.
std::string curve_colour(size_t i);

}  // namespace lathe
