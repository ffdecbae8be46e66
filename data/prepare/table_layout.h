// Determines the columns of a table from the options and from its first lines. Includes no LibTorch
// header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/examples/example_encoding.h"
#include "data/prepare/example_source.h"

namespace lathe {

/// The columns of a table, as far as its first lines determine them.
struct TableLayout {
  TableFormat format;
  /// For each column, whether its first cell is empty, so that later rows decide whether the column
  /// is text.
  std::vector<bool> is_undecided;
  /// For each column, whether --category makes its numbers categories.
  std::vector<bool> is_forced;
  size_t target = 0;  ///< index of the target's column
};

/// Returns the layout of a table. The first line is a header if one of these holds:
/// - an option names one of its columns;
/// - the line has a text above a number: in that column, the next non-empty cell is a number, or
///   all cells below the line are empty;
/// - the line has texts, none of which occurs again in its column, and the line's numbers are
///   integers, or are at least three numbers in ascending order;
/// - the line is 0, 1, 2, ... up to 4 or more, as pandas names columns.
/// Throws Exit::usage for options that do not fit, and Exit::data for a header line with a name
/// that is missing or occurs twice.
TableLayout find_layout(const std::string& file, std::string_view text,
                        const TableOptions& options);

}  // namespace lathe
