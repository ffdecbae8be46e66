// Arrays of a data folder that are being written. No LibTorch header.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/examples/example_manifest.h"
#include "data/examples/npy.h"

namespace lathe {

/// Throws Exit::data, since the input is not what the first pass over it found.
[[noreturn]] void fail_changed_input();

/// Returns the type in which elements of a type are kept: one that .npy has.
ArrayType kept_as(ArrayType type);

/// An array that is being written to its file.
class ArrayOut {
 public:
  ArrayOut(const fs::path& out, const std::string& file, ArrayType type, std::vector<int64_t> sizes,
           int64_t examples);
  /// Appends numbers. Throws Exit::data where one is not of the array's type.
  void add(std::span<const double> numbers);
  /// Completes the file and returns its entry in the manifest.
  ArrayInfo finish();

  ArrayInfo info;

 private:
  void flush();

  NpyWriter writer_;
  std::vector<std::byte> waiting_;
};

}  // namespace lathe
