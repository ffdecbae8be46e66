#include "data/prepare/image_file.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/text.h"
#include "data/prepare/image_decoders.h"

namespace lathe {
namespace {

enum class ImageFormat : uint8_t { none, png, jpeg };

ImageFormat format_of(const MappedFile& file) {
  const std::string_view begin(reinterpret_cast<const char*>(file.bytes().data()),
                               std::min<size_t>(file.bytes().size(), 8));
  if (begin == "\x89PNG\r\n\x1A\n") return ImageFormat::png;
  return begin.starts_with("\xFF\xD8\xFF") ? ImageFormat::jpeg : ImageFormat::none;
}

std::vector<uint8_t> to_gray(const std::vector<uint8_t>& colors) {
  std::vector<uint8_t> gray(colors.size() / 3);
  for (size_t i = 0; i < gray.size(); ++i) {
    // Use the weights of BT.601 times 2^16, as Pillow does.
    const uint32_t sum =
        19595U * colors[3 * i] + 38470U * colors[3 * i + 1] + 7471U * colors[3 * i + 2];
    gray[i] = static_cast<uint8_t>((sum + 0x8000U) >> 16);
  }
  return gray;
}

std::vector<uint8_t> to_colors(const std::vector<uint8_t>& gray) {
  std::vector<uint8_t> colors;
  colors.reserve(gray.size() * 3);
  for (const uint8_t value : gray) colors.insert(colors.end(), 3, value);
  return colors;
}

}  // namespace

bool has_image_name(const fs::path& path) {
  const std::string end = lower_extension(path);
  return end == ".png" || end == ".jpg" || end == ".jpeg";
}

bool is_image_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  return format_of(MappedFile(path, Exit::data)) != ImageFormat::none;
}

void fail_damaged_image(const std::string& name, const char* what) {
  fail(Exit::data, name, " is damaged (", printable_line(what), "); replace it, or remove it");
}

void check_image_size(int64_t height, int64_t width, const std::string& name) {
  if (height < 1 || width < 1) fail_damaged_image(name, "an image without pixels");
  // Divide instead of multiplying, since the product of height and width could overflow.
  if (height > ImageFile::most_pixels / width)
    fail(Exit::data, name, " has ", height, " x ", width,
         " pixels, more than 100 million; make it smaller, or remove it");
}

ImageFile::ImageFile(const fs::path& path) : file_(path, Exit::data), name_(path.string()) {
  const ImageFormat format = format_of(file_);
  if (format == ImageFormat::none)
    fail(Exit::data, name_, " is neither a PNG nor a JPEG image; convert it, or remove it");
  decoder_ =
      format == ImageFormat::png ? open_png(file_.bytes(), name_) : open_jpeg(file_.bytes(), name_);
}

ImageFile::~ImageFile() = default;

int64_t ImageFile::height() const { return decoder_->height; }
int64_t ImageFile::width() const { return decoder_->width; }
bool ImageFile::is_gray() const { return decoder_->gray; }

void ImageFile::read(int64_t channels, std::vector<uint8_t>& pixels) {
  const auto row = static_cast<size_t>(width() * decoder_->native_channels());
  pixels.resize(static_cast<size_t>(height()) * row);
  std::vector<uint8_t*> rows(static_cast<size_t>(height()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = pixels.data() + i * row;
  decoder_->read(rows);

  if (channels == decoder_->native_channels()) return;
  pixels = channels == 1 ? to_gray(pixels) : to_colors(pixels);
}

}  // namespace lathe
