// The cells of a table's row as inputs of a model. No LibTorch header.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/examples/example_encoding.h"

namespace lathe {

/// Encodes the input columns of rows, which may be in another order than those of the format.
class RowEncoder {
 public:
  /// `places` has the index in a row of each column of the format, which must outlive this object.
  RowEncoder(const TableFormat& format, std::vector<size_t> places);
  /// Appends the inputs of a row; an empty cell that a fill is not known for becomes NaN. Returns
  /// false where a cell is empty and such rows are left out, which is so in a table that is being
  /// prepared (`prepares`). Throws Exit::data, with `where(column)` as its beginning, for a cell
  /// that can't be encoded.
  bool encode(const std::vector<std::string_view>& fields, bool prepares,
              const std::function<std::string(size_t column)>& where,
              std::vector<double>& inputs) const;

 private:
  const TableFormat& format_;
  std::vector<size_t> places_;
  std::vector<std::map<std::string_view, size_t>> values_;  // of each text column
};

/// Throws Exit::data, which begins with `where`, for a cell that is not a finite number; in a table
/// that is being prepared, the sentence names the options that help.
[[noreturn]] void refuse_number(std::string_view cell, const std::string& where, bool prepares);

/// Returns a text of a file for a message, cut to 100 bytes.
std::string quoted(std::string_view text);

}  // namespace lathe
