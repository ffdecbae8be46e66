#include <png.h>

#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "data/prepare/image_decoders.h"

namespace lathe {
namespace {

/// The remaining bytes of a PNG file in memory, and the last error of libpng.
struct PngInput {
  const std::byte* at;
  size_t left;
  char message[200];  // the error that libpng reported
};

[[noreturn]] void on_error(png_structp png, png_const_charp what) {
  auto* input = static_cast<PngInput*>(png_get_error_ptr(png));
  std::snprintf(input->message, sizeof input->message, "%s", what);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, size_t bytes) {
  PngInput& input = *static_cast<PngInput*>(png_get_io_ptr(png));
  if (bytes > input.left) png_error(png, "the file is cut short");
  std::memcpy(out, input.at, bytes);
  input.at += bytes;
  input.left -= bytes;
}

class PngDecoder final : public ImageFile::Decoder {
 public:
  PngDecoder(std::span<const std::byte> bytes, const std::string& name)
      : name_(name), input_{bytes.data(), bytes.size(), {}} {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input_, on_error, on_warning);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      fail(Exit::memory, name, ": libpng could not be started");
    }
    png_set_read_fn(png_, &input_, read_bytes);
    // Skip text chunks, which may be compressed: libpng would keep up to 8 MB of each.
    png_set_chunk_cache_max(png_, 1);
  }
  ~PngDecoder() override { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  void open() {
    if (!read_header()) fail_damaged_image(name_, input_.message);
    check_image_size(height, width, name_);
  }
  void read(std::vector<uint8_t*>& rows) override {
    if (!read_rows(rows.data())) fail_damaged_image(name_, input_.message);
  }

 private:
  bool read_header();
  bool read_rows(uint8_t** rows);

  const std::string& name_;
  PngInput input_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

bool PngDecoder::read_header() {
  if (setjmp(png_jmpbuf(png_)) != 0) return false;
  png_read_info(png_, info_);
  height = png_get_image_height(png_, info_);
  width = png_get_image_width(png_, info_);
  const int type = png_get_color_type(png_, info_);
  gray = type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA;
  return true;
}

bool PngDecoder::read_rows(uint8_t** rows) {
  if (setjmp(png_jmpbuf(png_)) != 0) return false;
  png_set_palette_to_rgb(png_);
  png_set_expand_gray_1_2_4_to_8(png_);
  png_set_scale_16(png_);
  png_set_strip_alpha(png_);
  png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  if (png_get_rowbytes(png_, info_) != static_cast<size_t>(width * native_channels()))
    png_error(png_, "its rows do not have the size that its header states");
  png_read_image(png_, rows);
  png_read_end(png_, nullptr);
  return true;
}

}  // namespace

std::unique_ptr<ImageFile::Decoder> open_png(std::span<const std::byte> bytes,
                                             const std::string& name) {
  auto decoder = std::make_unique<PngDecoder>(bytes, name);
  decoder->open();
  return decoder;
}

}  // namespace lathe
