// Files that are neither text nor examples, recognized by their bytes. No LibTorch header.
#pragma once

#include <string>
#include <string_view>

namespace lathe {

/// Returns what a file that begins with these bytes is and what to do about it, as in "is a PNG
/// image; save images as an array (.npy)"; an empty string where its format is not known here.
std::string foreign_format(std::string_view head);

/// Checks a piece of a text file. Throws Exit::data with `remedy`, as in "name text files alone",
/// where it holds a NUL byte or, with `begins`, where a file of another format begins so.
void check_is_text(const std::string& file, std::string_view piece, bool begins,
                   const std::string& remedy);

}  // namespace lathe
