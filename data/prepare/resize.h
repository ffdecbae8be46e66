// Resampling of images. No LibTorch header.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lathe {

/// Resamples an image of 8-bit values, [height, width, channels], to any other size with a triangle
/// filter: bilinear interpolation where it grows, and where it shrinks a weighted mean with the
/// filter widened by the ratio, so that every pixel counts. This is BILINEAR of Pillow, and of
/// torchvision with antialiasing, whose results differ by 1 at most. Sides are scaled
/// independently, so another aspect ratio distorts the image. Values are rounded to the nearest
/// integer. Memory does not grow with the height of the image. `out`: [channels, out_height,
/// out_width].
void resize_image(std::span<const uint8_t> image, int64_t height, int64_t width, int64_t channels,
                  int64_t out_height, int64_t out_width, std::vector<double>& out);

}  // namespace lathe
