// What main.cc adds to Lathe.
#pragma once

#include "lathe/data/data.h"
#include "lathe/train/tasks/task.h"

namespace own {

/// A data kind, by the "kind" of its manifest: windows of a series of numbers, each with the number
/// that follows it.
std::unique_ptr<lathe::Data> open_series(const lathe::DataConfig& config);
/// Makes a folder of that kind from a text file of numbers; the last fifth is for validation.
void prepare_series(const std::string& file, const std::string& out, int64_t window);

/// A task: the 10%, 50% and 90% quantiles of a number. A model for it has three outputs.
std::unique_ptr<lathe::Task> make_quantiles();

}  // namespace own
