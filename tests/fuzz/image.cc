// Fuzzes PNG and JPEG files: the header, the pixels, and the resized image.
#include <algorithm>

#include "data/prepare/image_file.h"
#include "data/prepare/resize.h"
#include "tests/data/prepare/image_files.h"
#include "tests/fuzz/fuzz.h"

namespace lathe::fuzz {
std::vector<std::string> seeds() {
  using lathe::test::jpeg_of;
  using lathe::test::png_of;
  using lathe::test::random_bytes;
  return {
      png_of(5, 6, random_bytes(90, 1)),
      png_of(5, 6, random_bytes(5, 2), {PNG_COLOR_TYPE_GRAY, 1}),
      png_of(5, 6, random_bytes(240, 3), {PNG_COLOR_TYPE_RGBA, 16, true}),
      png_of(4, 8, random_bytes(4, 4), {PNG_COLOR_TYPE_PALETTE, 1, false, {{1, 2, 3}, {4, 5, 6}}}),
      jpeg_of(9, 8, random_bytes(216, 5)),
      jpeg_of(9, 8, random_bytes(72, 6), {JCS_GRAYSCALE, 1}),
      jpeg_of(9, 8, random_bytes(216, 7), {JCS_RGB, 3, true}),
      jpeg_of(9, 8, random_bytes(288, 8), {JCS_CMYK, 4})};
}
}  // namespace lathe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lathe;
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  std::vector<uint8_t> pixels;
  std::vector<double> resized;
  try {
    ImageFile image(file.path());
    fuzz::must(image.height() > 0 && image.width() > 0, "an image has pixels");
    fuzz::must(image.height() * image.width() <= ImageFile::most_pixels,
               "an image has at most most_pixels pixels");
    // Images within Lathe's size limit can still take a second, which is too slow for fuzzing.
    if (image.height() * image.width() > 1'000'000) return 0;
    const int64_t channels = size % 2 == 0 ? 1 : 3;
    image.read(channels, pixels);
    fuzz::must(std::ssize(pixels) == image.height() * image.width() * channels,
               "all pixels are read");
    resize_image(pixels, image.height(), image.width(), channels, 5, 7, resized);
    for (const double x : resized) fuzz::must(x >= 0 && x <= 255, "a resized value is in 0..255");
  } catch (const Error& e) {
    fuzz::must(e.code() == Exit::data, "invalid input gives Exit::data");
  }
  return 0;
}
