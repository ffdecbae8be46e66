// Creates PNG and JPEG files for tests with libpng and libjpeg.
#pragma once

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>
// jpeglib.h requires this include after <cstdio>.
#include <jpeglib.h>

namespace lathe::test {

/// The format options of a PNG file. Samples of 16 bits are big-endian.
struct PngForm {
  int color = PNG_COLOR_TYPE_RGB, depth = 8;
  bool interlaced = false;
  std::vector<png_color> palette{};
};

/// Returns the bytes of a PNG file. `rows` has the packed bytes of all rows.
inline std::string png_of(int64_t height, int64_t width, std::vector<uint8_t> rows,
                          const PngForm& form = {}) {
  std::string file;
  png_structp png = png_create_write_struct(
      PNG_LIBPNG_VER_STRING, nullptr, [](png_structp, png_const_charp) { std::abort(); }, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep bytes, size_t n) {
        static_cast<std::string*>(png_get_io_ptr(p))->append(reinterpret_cast<char*>(bytes), n);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               form.depth, form.color, form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!form.palette.empty())
    png_set_PLTE(png, info, form.palette.data(), static_cast<int>(form.palette.size()));
  png_write_info(png, info);
  const size_t row = rows.size() / static_cast<size_t>(height);
  std::vector<uint8_t*> pointers;
  for (int64_t y = 0; y < height; ++y)
    pointers.push_back(rows.data() + static_cast<size_t>(y) * row);
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

/// The format options of a JPEG file.
struct JpegForm {
  J_COLOR_SPACE space = JCS_RGB;
  int channels = 3;
  bool progressive = false;
  bool apart = false;  ///< whether each of the three channels has its own scan
};

/// Returns the bytes of a JPEG file of the best quality, from pixels [height, width, channels].
inline std::string jpeg_of(int64_t height, int64_t width, std::vector<uint8_t> pixels,
                           const JpegForm& form = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // the type that jpeg_mem_dest() takes
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(height);
  info.image_width = static_cast<JDIMENSION>(width);
  info.input_components = form.channels;
  info.in_color_space = form.space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  for (int c = 0; c < info.num_components; ++c)
    info.comp_info[c].h_samp_factor = info.comp_info[c].v_samp_factor = 1;
  if (form.progressive) jpeg_simple_progression(&info);
  const jpeg_scan_info scans[]{{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (form.apart) {
    info.scan_info = scans;
    info.num_scans = 3;
  }
  jpeg_start_compress(&info, TRUE);
  for (int64_t y = 0; y < height; ++y) {
    JSAMPROW row = pixels.data() + y * width * form.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return file;
}

/// Returns n pseudorandom bytes that depend only on the seed.
inline std::vector<uint8_t> random_bytes(int64_t n, uint32_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(seed >> 24);
  }
  return bytes;
}

}  // namespace lathe::test
