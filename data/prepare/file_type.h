// Files that are neither text nor examples, recognized by their bytes. No LibTorch header.
#pragma once

#include <string>
#include <string_view>

#include "core/io/file.h"

namespace lathe {

/// Returns what a file that begins with these bytes is and what to do about it, as in "is an HDF5
/// file; save it as .npy"; an empty string where its format is not known here.
std::string foreign_format(std::string_view head);

/// Throws Exit::data for a Parquet file, with how to convert it. Such a file begins and ends with
/// "PAR1"; a text may begin so.
void check_not_parquet(const fs::path& file);

/// Checks a piece of a text file. Throws Exit::data with `remedy`, as in "give only text files",
/// where it holds a NUL byte. With `begins`, the piece begins the file; then also throws where it
/// begins like a file of another format.
void check_is_text(const std::string& file, std::string_view piece, bool begins,
                   const std::string& remedy);

}  // namespace lathe
