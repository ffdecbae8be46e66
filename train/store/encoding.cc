#include "train/store/encoding.h"

#include "data/data.h"

namespace lathe {

ExampleEncoding encoding_of(const fs::path& run, const RunState& state, const RunConfig& config) {
  if (state.encoding) return *state.encoding;
  const std::string& dir = config.data.dir;
  if (!fs::exists(dir))
    fail(Exit::data, run.string(),
         " does not hold how its inputs were prepared, and its data folder ", dir,
         " is not there; put it back, or train again");
  const auto data = open_data(config.data);
  const auto& encoding = data->facts().encoding;
  if (!encoding)
    fail(Exit::data, dir,
         " does not hold how its inputs were prepared; `lathe predict` and `lathe export` need "
         "data that `lathe prepare` made of tables, arrays and images");
  if (encoding->input_sizes != state.sizes.input || encoding->outputs != state.sizes.outputs)
    fail(Exit::data, dir, " is not the data that ", run.string(), " was trained on; put that back");
  return *encoding;
}

}  // namespace lathe
