// Reads examples from tables: finds their columns and reads their cells as numbers. Includes no
// LibTorch header.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/examples/example_encoding.h"
#include "data/prepare/example_source.h"

namespace lathe {

/// Opens tables with the same columns. If `like` is null, the first file determines the format.
/// Otherwise `like` must be a scanned table source; the files must have its columns and are read in
/// the same way. Throws Exit::data if `like` is another kind of source.
std::unique_ptr<ExampleSource> open_tables(const std::vector<std::string>& files,
                                           const TableOptions& options, const ExampleSource* like);

/// Opens a table with new examples. Finds the columns of `format` by their names or, if the format
/// has no header line, by their positions. The target may be missing. RawExample::label is the id,
/// or empty if the table has none. `format` must outlive the source. Throws Exit::data with the
/// name of a missing input or, if the format has no header line, for a wrong number of columns.
std::unique_ptr<ExampleSource> open_new_rows(const std::string& file, const TableFormat& format);

}  // namespace lathe
