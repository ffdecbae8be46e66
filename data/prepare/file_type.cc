#include "data/prepare/file_type.h"

#include <algorithm>

#include "core/error.h"

namespace lathe {
namespace {

struct ForeignFormat {
  std::string_view head;
  const char* what;
};

constexpr const char* parquet_text =
    "is a Parquet file; convert it to CSV with python3 -c \"import pandas; "
    "pandas.read_parquet('IN.parquet').to_csv('OUT.csv', index=False)\"";

constexpr ForeignFormat foreign_formats[]{
    {"\x1F\x8B", "is compressed by gzip; unpack it with gunzip first"},
    {"\x28\xB5\x2F\xFD", "is compressed by Zstandard; unpack it with unzstd first"},
    {"PK\3\4",
     "is a ZIP archive (.npz, .xlsx and .whl are too); unpack it, or save it as .npy or .csv"},
    {"PAR1", parquet_text},
    {"\x89HDF", "is an HDF5 file; save it as .npy"},
    {"\x89PNG",
     "is a PNG image; put the images of each class into a separate folder, and prepare the "
     "folder that contains these folders with --format images"},
    {"\xFF\xD8\xFF",
     "is a JPEG image; put the images of each class into a separate folder, and prepare the "
     "folder that contains these folders with --format images"},
    {"%PDF-", "is a PDF document; save its text"},
    {"\xFF\xFE", "is UTF-16; save it as UTF-8"},
    {"\xFE\xFF", "is UTF-16; save it as UTF-8"},
};

/// Returns whether a text may begin with these bytes.
bool may_begin_text(std::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

const ForeignFormat* format_of(std::string_view head) {
  for (const ForeignFormat& format : foreign_formats) {
    if (head.starts_with(format.head)) return &format;
  }
  return nullptr;
}

}  // namespace

std::string foreign_format(std::string_view head) {
  const ForeignFormat* format = format_of(head);
  return format == nullptr ? "" : format->what;
}

void check_not_parquet(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  const MappedFile mapped(file, Exit::data);
  const std::string_view bytes(reinterpret_cast<const char*>(mapped.bytes().data()),
                               mapped.bytes().size());
  constexpr std::string_view mark = "PAR1";
  if (bytes.size() > 2 * mark.size() && bytes.starts_with(mark) && bytes.ends_with(mark))
    fail(Exit::data, file.string(), " ", parquet_text);
}

void check_is_text(const std::string& file, std::string_view piece, bool begins,
                   const std::string& remedy) {
  const bool has_nul = piece.find('\0') != std::string_view::npos;
  const ForeignFormat* format = begins ? format_of(piece) : nullptr;

  // A text may begin with a signature of printable characters, such as "PAR1". Real files of such
  // formats usually also contain NUL bytes.
  if (format != nullptr && (has_nul || !may_begin_text(format->head)))
    fail(Exit::data, file, " is not text: it ", format->what, ", or ", remedy);
  if (has_nul) fail(Exit::data, file, " is not text: it holds NUL bytes; ", remedy);
}

}  // namespace lathe
