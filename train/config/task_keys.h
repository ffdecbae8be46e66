// Keys of tasks. A task that has keys has a section of the config that is named after the task.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/models/model.h"

namespace lathe {

struct RunConfig;

/// The section of a task.
struct TaskKeys {
  std::string name;  ///< of the task
  std::string doc;
  AnyConfig config;  ///< with its defaults
  /// Returns a conflict between keys of a config, with complete keys ("section.name"), or nullopt.
  /// The function itself may be empty.
  std::function<std::optional<ConfigFault>(const RunConfig&)> check{};
};

/// Returns the sections of all tasks that have keys, in the order of the table in
/// train/tasks/table.cc.
std::vector<TaskKeys> task_keys();

}  // namespace lathe
