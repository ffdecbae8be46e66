// The decoders behind ImageFile. No LibTorch header.
#pragma once

#include <memory>
#include <span>

#include "data/prepare/image_file.h"

namespace lathe {

/// A decoder of one format. Both libraries end an error by longjmp; no function that calls them has
/// objects with destructors, and each throws only after it has returned from them.
class ImageFile::Decoder {
 public:
  virtual ~Decoder() = default;
  /// Decodes rows of 8-bit values with native_channels() values for each pixel to `rows`, a pointer
  /// for each row. Throws Exit::data.
  virtual void read(std::vector<uint8_t*>& rows) = 0;
  /// Returns the number of channels that the image has: 1 or 3.
  int64_t native_channels() const { return gray ? 1 : 3; }

  int64_t height = 0, width = 0;
  bool gray = false;
};

/// Opens a PNG image whose bytes and name must outlive the decoder, and reads its header. `name` is
/// the file's, for errors, which are Exit::data.
std::unique_ptr<ImageFile::Decoder> open_png(std::span<const std::byte> bytes,
                                             const std::string& name);
/// Opens a JPEG image in the same way.
std::unique_ptr<ImageFile::Decoder> open_jpeg(std::span<const std::byte> bytes,
                                              const std::string& name);

/// Throws Exit::data for a damaged file, with what a library reports.
[[noreturn]] void fail_damaged_image(const std::string& name, const char* what);
/// Throws Exit::data for a size that is 0 or has too many pixels.
void check_image_size(int64_t height, int64_t width, const std::string& name);

}  // namespace lathe
