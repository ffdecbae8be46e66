// Writes the arrays of a data folder. Includes no LibTorch header.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/examples/example_manifest.h"
#include "data/examples/npy.h"

namespace lathe {

/// Throws Exit::data with the message that the input changed while it was being read.
[[noreturn]] void fail_changed_input();

/// Returns the type in which elements of `type` are stored: uint8 for bool, float32 for float16 and
/// bfloat16, and otherwise `type`.
ArrayType storage_type(ArrayType type);

/// An array that is being written to its file.
class ArrayOut {
 public:
  /// Creates the .npy file `file` in the data folder `out`, for an array of shape
  /// [examples, sizes...].
  ArrayOut(const fs::path& out, const std::string& file, ArrayType type, std::vector<int64_t> sizes,
           int64_t examples);
  /// Appends elements. Rounds them to float32 if that is the array's type. For other types, calls
  /// fail_changed_input() if a number can't be stored exactly.
  void add(std::span<const double> numbers);
  /// Completes the file and returns its entry in the manifest.
  ArrayInfo finish();

  /// The entry in the manifest; the checksum is empty until finish() is called.
  ArrayInfo info;

 private:
  void flush();

  NpyWriter writer_;
  std::vector<std::byte> waiting_;
};

}  // namespace lathe
