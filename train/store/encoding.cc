#include "train/store/encoding.h"

#include <algorithm>

#include "core/io/text.h"
#include "data/data.h"

namespace lathe {

ExampleEncoding encoding_of(const fs::path& run, const RunState& state, const RunConfig& config) {
  if (state.encoding) return *state.encoding;
  const std::string& dir = config.data.dir;
  if (!fs::exists(dir))
    fail(Exit::data, run.string(),
         " does not record how its inputs were prepared, and its data folder ", dir,
         " is missing; put the folder back, or train again");
  const auto data = open_data(config.data);
  const auto& encoding = data->facts().encoding;
  if (!encoding)
    fail(Exit::data, dir,
         " does not record how its inputs were prepared; `lathe predict` and `lathe export` need "
         "data that `lathe prepare` made from tables, arrays or images");
  const bool fits =
      encoding->input_sizes == state.sizes.input && encoding->outputs == state.sizes.outputs;
  if (!fits || (!state.data_hash.empty() && !data->matches(state.data_hash)))
    fail(Exit::data, dir, " is not the data that ", run.string(),
         " was trained on; put the run's data back");
  return *encoding;
}

namespace {

/// Returns the names of the classes. A class without a label has its number as its name.
std::vector<std::string> class_names(const ExampleEncoding& e) {
  std::vector<std::string> names = e.labels;
  for (int64_t i = std::ssize(names); i < e.outputs; ++i) names.push_back(std::to_string(i));
  return names;
}

/// Returns the name of each input of a table. An input is a column of numbers, or one of the values
/// of a text column.
std::vector<std::string> input_names(const TableFormat& table) {
  std::vector<std::string> names;
  for (const TableColumn& column : table.columns) {
    if (column.role != ColumnRole::input) continue;
    if (!column.is_text) names.push_back(column.name);
    for (const std::string& value : column.values) names.push_back(str(column.name, " = ", value));
  }
  return names;
}

/// Throws Exit::data at the first name that differs.
void check_same_names(const std::vector<std::string>& ours, const std::vector<std::string>& theirs,
                      const char* what, const std::string& folder, const char* remedy) {
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] == theirs[i]) continue;
    fail(Exit::data, folder, ": ", what, " ", i + 1, " is ", printable_line(theirs[i]),
         ", but in the data that the model was trained on it is ", printable_line(ours[i]), remedy);
  }
}

}  // namespace

void check_compatible_encoding(const ExampleEncoding& ours, const ExampleEncoding& theirs,
                               const std::string& folder, const char* remedy) {
  const bool classifies = ours.targets.mean.empty();
  if (classifies) check_same_names(class_names(ours), class_names(theirs), "class", folder, remedy);
  if (!ours.table || !theirs.table) return;

  // The columns of a table without a header line have no names.
  if (ours.table->has_header == theirs.table->has_header)
    check_same_names(input_names(*ours.table), input_names(*theirs.table), "input", folder, remedy);
}

}  // namespace lathe
