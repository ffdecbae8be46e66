// PNG and JPEG files, decoded by libpng and libjpeg-turbo. No LibTorch header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Returns whether a name ends in .png, .jpg or .jpeg, in upper or lower case.
bool has_image_name(const fs::path& path);
/// Returns whether a file begins as a PNG or JPEG file does, whatever its name.
bool is_image_file(const fs::path& path);

/// A file with one image. Its first bytes decide between PNG and JPEG.
class ImageFile {
 public:
  /// Reads the header. Throws Exit::data with the file's name where it is not a PNG or JPEG image,
  /// is damaged, has a color space that is not read (CMYK), or more than 100 million pixels, which
  /// limits the memory that a small file can demand.
  explicit ImageFile(const fs::path& path);
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  /// Returns the number of rows, at least 1.
  int64_t height() const;
  /// Returns the number of columns, at least 1.
  int64_t width() const;
  /// Returns whether it has gray values only: a PNG's palette counts as colors.
  bool is_gray() const;
  /// Decodes the image, once, to `pixels` [height, width, channels] with 1 channel (gray) or 3
  /// (red, green, blue). Values have 8 bits; 16-bit values are rounded to them. Transparency, color
  /// profiles and the orientation in EXIF are ignored. Gray becomes three equal channels, and
  /// colors become gray as (299 R + 587 G + 114 B) / 1000 (ITU-R BT.601). Throws Exit::data where
  /// the file is damaged or cut short.
  void read(int64_t channels, std::vector<uint8_t>& pixels);

  /// The largest number of pixels.
  static constexpr int64_t most_pixels = 100'000'000;

  /// A decoder of one of the formats.
  class Decoder;

 private:
  MappedFile file_;
  std::string name_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace lathe
