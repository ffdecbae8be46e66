// Declares hooks that read or replace the results of modules. The constructor of a ForwardHook
// walks the model once, to find the addresses of the modules.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>

#include "autograd/variable.h"
#include "core/mode.h"
#include "nn/module.h"

namespace lathe {

class ModuleCall;

/// Until destroyed, calls f on this thread with the result of each module of `model` whose path
/// matches `pattern` (matches() of autograd/parameter.h). The result of a recurrent module is the
/// sequence, without the state. If f returns a defined Variable, this Variable replaces the result.
/// Of several hooks, the innermost is called first. Hooks are not called for modules that make no
/// ModuleCall. Modules must not move in memory while the hook exists. Throws if no module has a
/// path that matches.
class ForwardHook : public ModeGuard {
 public:
  /// Takes the module's path and result. If the function returns a defined Variable, the Variable
  /// replaces the result.
  using Function = std::function<Variable(const std::string& path, const Variable& y)>;
  ForwardHook(const ModuleRef& model, std::string_view pattern, Function f);

  /// Calls the hook's function if the pattern matches the module of the call `at`. If the hook's
  /// function returns a defined Variable, replaces `y`, the module's result, by this Variable. Only
  /// ModuleCall uses call().
  void call(const ModuleCall& at, Variable& y) const;
  const ForwardHook* outer() const { return outer_; }

 private:
  std::map<std::pair<const void*, std::type_index>, std::string> paths_;
  Function f_;
  const ForwardHook* outer_;
};

}  // namespace lathe
