#include "data/prepare/resize.h"

#include <algorithm>
#include <cmath>

namespace lathe {
namespace {

/// The filter's weights for an output position. They belong to the inputs at positions `begin` and
/// later.
struct Taps {
  int64_t begin = 0;
  std::vector<double> weights;
};

/// Returns, for each of `to` output positions, the filter's weights for resampling `from` inputs.
std::vector<Taps> triangle_taps(int64_t from, int64_t to) {
  const double ratio = static_cast<double>(from) / static_cast<double>(to);
  const double support = std::max(ratio, 1.0);
  std::vector<Taps> taps(static_cast<size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    Taps& t = taps[static_cast<size_t>(i)];
    const double center = (static_cast<double>(i) + 0.5) * ratio;
    t.begin = std::max<int64_t>(0, std::llround(center - support));
    const int64_t end = std::min<int64_t>(from, std::llround(center + support));

    double sum = 0;
    for (int64_t j = t.begin; j < end; ++j) {
      const double distance = std::fabs(static_cast<double>(j) + 0.5 - center) / support;
      t.weights.push_back(std::max(0.0, 1 - distance));
      sum += t.weights.back();
    }
    for (double& w : t.weights) w /= sum;
  }
  return taps;
}

}  // namespace

void resize_image(std::span<const uint8_t> image, int64_t height, int64_t width, int64_t channels,
                  int64_t out_height, int64_t out_width, std::vector<double>& out) {
  const std::vector<Taps> down = triangle_taps(height, out_height),
                          across = triangle_taps(width, out_width);
  const auto row_size = static_cast<size_t>(width * channels);
  const auto depth = static_cast<size_t>(channels), columns = static_cast<size_t>(out_width);
  const size_t plane = static_cast<size_t>(out_height) * columns;
  out.resize(depth * plane);

  std::vector<double> row(row_size);
  for (size_t y = 0; y < down.size(); ++y) {
    std::fill(row.begin(), row.end(), 0);
    const uint8_t* from = image.data() + static_cast<size_t>(down[y].begin) * row_size;
    for (const double w : down[y].weights) {
      for (size_t i = 0; i < row_size; ++i) row[i] += w * from[i];
      from += row_size;
    }

    for (size_t x = 0; x < columns; ++x) {
      for (size_t c = 0; c < depth; ++c) {
        double sum = 0;
        const double* pixel = row.data() + static_cast<size_t>(across[x].begin) * depth + c;
        for (const double w : across[x].weights) {
          sum += w * *pixel;
          pixel += depth;
        }
        out[c * plane + y * columns + x] = std::floor(sum + 0.5);
      }
    }
  }
}

}  // namespace lathe
