// Declares the frozen model that a task needs beside the trained model, such as the reference model
// of dpo or the teacher of distill.
#pragma once

#include <memory>
#include <string>

#include "train/session/load.h"
#include "train/tasks/task.h"

namespace lathe {

/// Returns the config with the path and the [model] of the frozen model that the task needs. If the
/// config already has these values, changes nothing. Throws Exit::usage or Exit::checkpoint, with
/// the origin of the key, if the frozen model can't be used. Throws Exit::data if the tokenizers of
/// the frozen model and the data differ.
LoadedConfig resolve_frozen(LoadedConfig loaded, const Task& task, const DatasetInfo& facts);

/// Holds the task of one run.
struct RunTask {
  std::unique_ptr<const Task> own;  ///< the run's task object; null if the task in the table of
                                    ///< tasks is used
  std::string frozen_hash;  ///< checksum of the frozen model's weights; "" if there is no frozen
                            ///< model
};
/// Makes the task of a run, with its frozen model in float32 on the device. If `loaded` has the
/// [model] of the frozen model but no path, as in a forecast, the frozen weights are 0.
RunTask make_run_task(const LoadedConfig& loaded, const Task& task, const ModelSizes& sizes,
                      at::Device device);
/// Makes the task of a loaded checkpoint, for data that `facts` describe. Throws Exit::checkpoint
/// if the frozen model differs from the frozen model that the run was trained with.
RunTask make_run_task(const LoadedModel& loaded, const Task& task, const DatasetInfo& facts);
/// Throws Exit::checkpoint if the frozen model differs from the frozen model that a run was trained
/// with. `now` is the checksum of the frozen model, and `saved` is the state of the run.
void check_frozen(const RunConfig& config, const Task& task, const RunState& saved,
                  const std::string& now);

}  // namespace lathe
