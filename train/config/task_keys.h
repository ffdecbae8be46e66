// Defines the config keys of tasks. If a task has keys, the config has a section with the name of
// the task.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "nn/models/model.h"

namespace lathe {

struct RunConfig;

/// The config section of a task.
struct TaskKeys {
  std::string name;  ///< name of the task
  std::string doc;
  AnyConfig config;  ///< keys of the section with their default values
  /// Returns a contradiction between keys of a config, or nullopt if there is none. Keys in the
  /// result are complete ("section.name"). The std::function may be empty.
  std::function<std::optional<ConfigFault>(const RunConfig&)> check{};
};

/// Returns the sections of all tasks that have keys, in the order of the table in
/// train/tasks/table.cc.
std::vector<TaskKeys> task_keys();

}  // namespace lathe
