#include <csetjmp>
#include <cstdio>
// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

#include <jerror.h>

#include "core/error.h"
#include "data/prepare/image_decoders.h"

namespace lathe {
namespace {

/// The largest number of scans of a progressive file. Each scan takes time in proportion to the
/// number of pixels. Ordinary files have about ten scans.
constexpr int most_scans = 100;

/// State that libjpeg's callbacks share. A callback receives a pointer to the first member,
/// `manager`, and casts that pointer to JpegErrors.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void on_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->back, 1);
}

/// Turns most warnings into errors: libjpeg would fill the missing part of a damaged image with
/// gray and only issue a warning.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:  // bytes between segments, which some cameras write
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR: return;
    default: on_error(info);
  }
}

void on_progress(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most_scans) return;
  std::snprintf(errors->message, sizeof errors->message, "it has more than %d scans", most_scans);
  std::longjmp(errors->back, 1);
}

class JpegDecoder final : public ImageFile::Decoder {
 public:
  JpegDecoder(std::span<const std::byte> bytes, const std::string& name)
      : name_(name), bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_error;
    errors_.manager.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  void open() {
    if (!read_header()) fail_damaged_image(name_, errors_.message);
    if (info_.num_components != 1 && info_.num_components != 3)
      fail(Exit::data, name_, " is a JPEG image of ", info_.num_components, " color components",
           info_.num_components == 4 ? ", as in CMYK" : "", "; convert it to RGB");
    check_image_size(height, width, name_);
  }
  void read(std::vector<uint8_t*>& rows) override {
    if (!read_rows(rows.data())) fail_damaged_image(name_, errors_.message);
  }

 private:
  bool read_header();
  bool read_rows(uint8_t** rows);

  const std::string& name_;
  std::span<const std::byte> bytes_;
  jpeg_decompress_struct info_{};
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
};

bool JpegDecoder::read_header() {
  if (setjmp(errors_.back) != 0) return false;
  jpeg_create_decompress(&info_);
  info_.progress = &progress_;
  jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
  jpeg_read_header(&info_, TRUE);
  height = info_.image_height;
  width = info_.image_width;
  gray = info_.num_components == 1;
  return true;
}

bool JpegDecoder::read_rows(uint8_t** rows) {
  if (setjmp(errors_.back) != 0) return false;
  info_.out_color_space = gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&info_);
  while (info_.output_scanline < info_.output_height) {
    jpeg_read_scanlines(&info_, rows + info_.output_scanline,
                        info_.output_height - info_.output_scanline);
  }
  jpeg_finish_decompress(&info_);
  return true;
}

}  // namespace

std::unique_ptr<ImageFile::Decoder> open_jpeg(std::span<const std::byte> bytes,
                                              const std::string& name) {
  auto decoder = std::make_unique<JpegDecoder>(bytes, name);
  decoder->open();
  return decoder;
}

}  // namespace lathe
