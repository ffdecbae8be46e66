// Tests of decoding and resizing image files.
#include <ATen/ops/_upsample_bilinear2d_aa.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "data/prepare/image_file.h"
#include "data/prepare/resize.h"
#include "tests/data/prepare/image_files.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;
using namespace lathe::test;

using ImagePixels = std::vector<uint8_t>;

/// Returns the pixels of an image file with these bytes.
ImagePixels decoded(const std::string& bytes, int64_t channels) {
  const TempFolder f;
  write_file(f / "a", bytes);
  ImageFile file(f / "a");
  ImagePixels pixels;
  file.read(channels, pixels);
  CHECK(std::ssize(pixels) == file.height() * file.width() * channels);
  return pixels;
}

/// Returns sample i of a row whose samples have `depth` bits.
uint32_t sample_of(const uint8_t* row, int depth, int64_t i) {
  if (depth == 16) return static_cast<uint32_t>(row[2 * i] << 8 | row[2 * i + 1]);
  if (depth == 8) return row[i];
  const int64_t bit = i * depth;
  return static_cast<uint32_t>(row[bit / 8] >> (8 - depth - bit % 8)) & ((1U << depth) - 1);
}

TEST_CASE("every form of PNG is decoded to the nearest 8-bit values", "[image_files]") {
  struct Form {
    int color, samples;
    std::vector<int> depths;
  };
  constexpr int64_t height = 5, width = 11;
  for (const Form& form :
       {Form{PNG_COLOR_TYPE_GRAY, 1, {1, 2, 4, 8, 16}}, Form{PNG_COLOR_TYPE_GRAY_ALPHA, 2, {8, 16}},
        Form{PNG_COLOR_TYPE_PALETTE, 1, {1, 2, 4, 8}}, Form{PNG_COLOR_TYPE_RGB, 3, {8, 16}},
        Form{PNG_COLOR_TYPE_RGBA, 4, {8, 16}}}) {
    for (const int depth : form.depths) {
      for (const bool interlaced : {false, true}) {
        INFO("color type " << form.color << ", " << depth << " bits, interlaced " << interlaced);
        const int64_t row = (width * form.samples * depth + 7) / 8;
        const ImagePixels rows =
            random_bytes(height * row, static_cast<uint32_t>(depth + form.color));
        PngForm png{.color = form.color, .depth = depth, .interlaced = interlaced};
        if (form.color == PNG_COLOR_TYPE_PALETTE) {
          const ImagePixels colors = random_bytes(3 << depth, 9);
          for (size_t i = 0; i < colors.size(); i += 3)
            png.palette.push_back({colors[i], colors[i + 1], colors[i + 2]});
        }
        const std::string file = png_of(height, width, rows, png);

        // The formula is value * 255 / (2^depth - 1). Only samples of 16 bits need rounding.
        ImagePixels wanted;
        const bool gray = form.samples < 3 && png.palette.empty();
        for (int64_t i = 0; i < height * width; ++i) {
          const uint8_t* from = rows.data() + i / width * row;
          for (int c = 0; c < (gray ? 1 : 3); ++c) {
            const int64_t at = i % width * form.samples + (png.palette.empty() ? c : 0);
            const uint32_t value = sample_of(from, depth, at);
            if (png.palette.empty()) {
              wanted.push_back(
                  static_cast<uint8_t>(std::lround(value * 255.0 / ((1 << depth) - 1))));
            } else {
              const png_color& color = png.palette[value];
              wanted.push_back(c == 0 ? color.red : c == 1 ? color.green : color.blue);
            }
          }
        }
        CHECK(decoded(file, gray ? 1 : 3) == wanted);

        const ImagePixels other = decoded(file, gray ? 3 : 1);
        for (size_t i = 0; i < static_cast<size_t>(height * width); ++i) {
          if (gray) {
            for (size_t c = 0; c < 3; ++c) REQUIRE(other[3 * i + c] == wanted[i]);
            continue;
          }
          const double luma =
              (299.0 * wanted[3 * i] + 587.0 * wanted[3 * i + 1] + 114.0 * wanted[3 * i + 2]) /
              1000;
          REQUIRE(std::fabs(other[i] - luma) < 0.51);
        }
      }
    }
  }
}

TEST_CASE("gray and colored JPEG files, progressive or not, are decoded", "[image_files]") {
  constexpr int64_t height = 24, width = 17;
  for (const bool progressive : {false, true}) {
    for (const int channels : {1, 3}) {
      INFO(channels << " channels, progressive " << progressive);
      ImagePixels pixels;
      for (int64_t i = 0; i < height * width; ++i) {
        for (int c = 0; c < channels; ++c)
          pixels.push_back(static_cast<uint8_t>(40 + i / width * 5 + i % width * (2 + c)));
      }
      const ImagePixels got = decoded(jpeg_of(height, width, pixels,
                                              {.space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB,
                                               .channels = channels,
                                               .progressive = progressive}),
                                      channels);
      int most = 0;
      for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(got[i] - pixels[i]));
      CHECK(most <= 3);  // at the best quality, smooth images are decoded almost exactly
    }
  }
}

/// Returns LibTorch's antialiased bilinear resampling as [C, height, width] in float64.
std::vector<double> torch_resized(const ImagePixels& image, int64_t height, int64_t width,
                                  int64_t channels, int64_t out_height, int64_t out_width) {
  const at::Tensor hwc =
      at::from_blob(const_cast<uint8_t*>(image.data()), {1, height, width, channels}, at::kByte);
  const at::Tensor out = at::_upsample_bilinear2d_aa(hwc.permute({0, 3, 1, 2}).to(at::kDouble),
                                                     {out_height, out_width}, false)
                             .contiguous();
  return {out.data_ptr<double>(), out.data_ptr<double>() + out.numel()};
}

TEST_CASE("resized images agree with LibTorch and the formula", "[image_files]") {
  std::vector<double> out;
  // If a row is resized from 4 to 2 pixels, the triangular filter is 4 pixels wide. Its weights are
  // 1/8, 3/8, 3/8 and 1/8. Where the border cuts the filter off, they are 3/7, 3/7 and 1/7.
  const ImagePixels row{10, 50, 90, 250};
  resize_image(row, 1, 4, 1, 1, 2, out);
  CHECK(out == std::vector<double>{std::round((3 * 10 + 3 * 50 + 90) / 7.0),
                                   std::round((50 + 3 * 90 + 3 * 250) / 7.0)});
  // If a column is resized from 2 to 4 pixels, values between the centers of the 2 pixels are
  // interpolated, and the outer values stay the same.
  resize_image(ImagePixels{0, 100}, 2, 1, 1, 4, 1, out);
  CHECK(out == std::vector<double>{0, 25, 75, 100});

  uint32_t seed = 3;
  for (const auto& [height, width, out_height, out_width] :
       std::vector<std::array<int64_t, 4>>{{7, 9, 7, 9},
                                           {1, 1, 6, 4},
                                           {33, 20, 8, 8},
                                           {8, 8, 33, 20},
                                           {300, 2, 5, 7},
                                           {2, 300, 7, 5},
                                           {64, 64, 1, 1}}) {
    for (const int64_t channels : {1, 3}) {
      INFO(height << "x" << width << " to " << out_height << "x" << out_width);
      const ImagePixels image = random_bytes(height * width * channels, seed++);
      resize_image(image, height, width, channels, out_height, out_width, out);
      const auto theirs = torch_resized(image, height, width, channels, out_height, out_width);
      REQUIRE(out.size() == theirs.size());
      double most = 0;
      for (size_t i = 0; i < out.size(); ++i) {
        REQUIRE(out[i] == std::floor(out[i]));
        most = std::max(most, std::fabs(out[i] - theirs[i]));
      }
      CHECK(most <= 0.5 + 1e-6);
    }
  }
}

TEST_CASE("an image with any byte changed is read or refused", "[image_files]") {
  const TempFolder f(fast_folder());
  ImagePixels pixels;
  int refusals = 0, reads = 0;
  const PngForm palette{.color = PNG_COLOR_TYPE_PALETTE,
                        .depth = 1,
                        .interlaced = true,
                        .palette = {{1, 2, 3}, {4, 5, 6}}};

  for (const std::string& good :
       {png_of(5, 6, random_bytes(90, 1)), png_of(5, 8, random_bytes(5, 2), palette),
        jpeg_of(9, 8, random_bytes(216, 3)),
        jpeg_of(9, 8, random_bytes(216, 4), {.progressive = true})}) {
    for (size_t at = 0; at < good.size(); ++at) {
      for (const int bit : {0, 4, 7}) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
        write_file(f / "a", bytes);

        try {
          ImageFile file(f / "a");
          if (file.height() * file.width() > 100000) continue;
          file.read(3, pixels);
          REQUIRE(std::ssize(pixels) == file.height() * file.width() * 3);
          ++reads;
        } catch (const Error& e) {
          REQUIRE(e.code() == Exit::data);
          REQUIRE_THAT(e.what(), ContainsSubstring((f / "a").string()));
          ++refusals;
        }
      }
    }
  }

  // The test means something only if both outcomes are frequent.
  CHECK(refusals > 1000);
  CHECK(reads > 100);
}

}  // namespace
