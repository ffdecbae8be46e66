// Resizes images. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lathe {

/// Resamples an image of 8-bit values, [height, width, channels], to `out`, [channels, out_height,
/// out_width], with a triangle filter. A dimension that grows is interpolated bilinearly. For a
/// dimension that shrinks, the filter is widened by the ratio of the sizes, so that every pixel
/// counts. The results differ by at most 1 from the results of Pillow with BILINEAR and of
/// torchvision with antialiasing. Height and width are scaled independently, so another aspect
/// ratio distorts the image. Values are rounded to the nearest integer.
void resize_image(std::span<const uint8_t> image, int64_t height, int64_t width, int64_t channels,
                  int64_t out_height, int64_t out_width, std::vector<double>& out);

}  // namespace lathe
