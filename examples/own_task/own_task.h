// The data kind and the task that main.cc adds to Lathe.
#pragma once

#include "lathe/data/data.h"
#include "lathe/train/tasks/task.h"

namespace own {

/// Opens data of the kind "series" (the "kind" of its manifest): windows of a series of numbers,
/// each with the number that follows it.
std::unique_ptr<lathe::Data> open_series(const lathe::DataConfig& config);
/// Writes a folder of that kind from a text file of numbers that are separated by white space. A
/// window has `window` numbers; the last fifth of the windows is for validation. Throws Exit::data
/// if the file has anything but numbers.
void prepare_series(const std::string& file, const std::string& out, int64_t window);

/// Returns a task that predicts the 10%, 50% and 90% quantiles of a number. Its models have three
/// outputs.
std::unique_ptr<lathe::Task> make_quantiles();

}  // namespace own
