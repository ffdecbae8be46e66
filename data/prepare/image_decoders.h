// Declares the decoders that ImageFile uses. Includes no LibTorch header.
#pragma once

#include <memory>
#include <span>

#include "data/prepare/image_file.h"

namespace lathe {

/// A decoder of one format. On an error, libpng and libjpeg-turbo leave the calling function by
/// longjmp, which runs no destructors. Functions that call these libraries therefore own no objects
/// with destructors; they return false on an error, and the decoder throws after that.
class ImageFile::Decoder {
 public:
  virtual ~Decoder() = default;
  /// Decodes the image to 8-bit values, native_channels() for each pixel. `rows` has a pointer to
  /// the memory of each row. Throws Exit::data if the image is damaged.
  virtual void read(std::vector<uint8_t*>& rows) = 0;
  /// Returns the number of channels in the file, without transparency: 1 or 3.
  int64_t native_channels() const { return gray ? 1 : 3; }

  int64_t height = 0, width = 0;
  bool gray = false;
};

/// Opens a PNG image and reads its header. `bytes` and `name` must outlive the decoder. `name` is
/// the name of the file in errors. Throws Exit::data if the image is damaged or its size is not
/// supported.
std::unique_ptr<ImageFile::Decoder> open_png(std::span<const std::byte> bytes,
                                             const std::string& name);
/// Opens a JPEG image. The arguments and errors are the same as in open_png().
std::unique_ptr<ImageFile::Decoder> open_jpeg(std::span<const std::byte> bytes,
                                              const std::string& name);

/// Throws Exit::data for a damaged file. `what` is the error that a library reported.
[[noreturn]] void fail_damaged_image(const std::string& name, const char* what);
/// Throws Exit::data if a size is 0 or the image has too many pixels.
void check_image_size(int64_t height, int64_t width, const std::string& name);

}  // namespace lathe
