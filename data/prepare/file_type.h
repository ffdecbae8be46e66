// Recognizes, by their bytes, files that are neither text nor examples. Includes no LibTorch
// header.
#pragma once

#include <string>
#include <string_view>

#include "core/io/file.h"

namespace lathe {

/// Returns a phrase that names the format of a file that begins with these bytes and states what to
/// do with the file, such as "is an HDF5 file; save it as .npy". Returns an empty string if the
/// format is unknown.
std::string foreign_format(std::string_view head);

/// Throws Exit::data for a Parquet file, with instructions to convert it. Such a file begins and
/// ends with "PAR1". The beginning does not suffice to recognize the format, since a text may also
/// begin with "PAR1".
void check_not_parquet(const fs::path& file);

/// Checks a piece of a text file; `begins` is whether it is the first piece. Throws Exit::data,
/// with `remedy` (such as "give only text files") in the message, if the piece contains a NUL byte,
/// or if the first piece begins with the signature of another format. A signature of printable
/// characters, such as "%PDF-", does not suffice, since a text may also begin with it.
void check_is_text(const std::string& file, std::string_view piece, bool begins,
                   const std::string& remedy);

}  // namespace lathe
