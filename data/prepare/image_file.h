// Decodes PNG and JPEG files with libpng and libjpeg-turbo. Includes no LibTorch header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/io/file.h"

namespace lathe {

/// Returns whether a name ends in .png, .jpg or .jpeg, in upper or lower case.
bool has_image_name(const fs::path& path);
/// Returns whether a file begins like a PNG or JPEG file. Its name does not matter.
bool is_image_file(const fs::path& path);

/// A file with one image. Its first bytes decide between PNG and JPEG.
class ImageFile {
 public:
  /// Reads the header. Throws Exit::data with the file's name if it is not a PNG or JPEG image, is
  /// damaged, has an unsupported color space (CMYK), or has more than most_pixels pixels.
  explicit ImageFile(const fs::path& path);
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  /// Returns the number of rows, at least 1.
  int64_t height() const;
  /// Returns the number of columns, at least 1.
  int64_t width() const;
  /// Returns whether the file's format is gray. The format of a PNG with a palette is not gray,
  /// even if all its colors are gray.
  bool is_gray() const;
  /// Decodes the image to `pixels` [height, width, channels] with 1 channel (gray) or 3 (red,
  /// green, blue). Call read() only once. Values have 8 bits; 16-bit values are rounded to 8 bits.
  /// Transparency, color profiles and the orientation in EXIF are ignored. If `channels` is 3, a
  /// gray image becomes three equal channels. If it is 1, colors become gray as (299 R + 587 G +
  /// 114 B) / 1000 (ITU-R BT.601). Throws Exit::data if the file is damaged or cut short.
  void read(int64_t channels, std::vector<uint8_t>& pixels);

  /// The largest number of pixels of an image. It limits the memory that a small file can demand.
  static constexpr int64_t most_pixels = 100'000'000;

  /// Decodes one of the two formats.
  class Decoder;

 private:
  MappedFile file_;
  std::string name_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace lathe
