// Encodes the cells of a table's row as inputs of a model. Includes no LibTorch header.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/examples/example_encoding.h"

namespace lathe {

/// Encodes the input columns of rows. The order of the columns in the rows may differ from their
/// order in the format.
class RowEncoder {
 public:
  /// Creates an encoder. `places` has, for each column of `format`, the column's index in a row.
  /// `format` must outlive this object.
  RowEncoder(const TableFormat& format, std::vector<size_t> places);
  /// Appends the inputs of a row to `inputs`. If the format's `missing` is mean or median, an empty
  /// cell of a numeric column becomes the column's fill, or NaN if the fill is not known yet.
  /// Throws Exit::data for a cell that can't be encoded; the message begins with `where(column)`.
  /// If `prepares` is true, the message may name options of `lathe prepare`.
  void encode(const std::vector<std::string_view>& fields, bool prepares,
              const std::function<std::string(size_t column)>& where,
              std::vector<double>& inputs) const;

 private:
  const TableFormat& format_;
  std::vector<size_t> places_;
  std::vector<std::map<std::string_view, size_t>> values_;  // index of each value, by column
};

/// Throws Exit::data for a cell that is not a finite number; the message begins with `where`. If
/// `prepares` is true and the cell is a text such as "n/a", the message names the options of `lathe
/// prepare` that help.
[[noreturn]] void refuse_number(std::string_view cell, const std::string& where, bool prepares);

/// Returns the first 100 bytes of a text in quotation marks, for a message.
std::string quoted(std::string_view text);

}  // namespace lathe
