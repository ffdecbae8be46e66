// Declares the data kind and the task that main.cc adds to Lathe.
#pragma once

#include "lathe/data/data.h"
#include "lathe/train/tasks/task.h"

namespace own {

/// Opens data whose manifest has the kind "series". An example is a window of a series of numbers
/// and the number that follows the window.
std::unique_ptr<lathe::Data> open_series(const lathe::DataConfig& config);
/// Writes a data folder of the kind "series" from a text file of numbers that are separated by
/// white space. A window has `window` numbers; the last fifth of the windows is for validation.
/// Throws Exit::data if the file has anything but numbers.
void prepare_series(const std::string& file, const std::string& out, int64_t window);

/// Returns a task that predicts the 10%, 50% and 90% quantiles of a number. Its models have three
/// outputs.
std::unique_ptr<lathe::Task> make_quantiles();

}  // namespace own
