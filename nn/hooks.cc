#include "nn/hooks.h"

#include "core/error.h"
#include "nn/module_call.h"

namespace lathe {

ForwardHook::ForwardHook(const ModuleRef& model, std::string_view pattern, Function f)
    : f_(std::move(f)), outer_(mode().forward_hooks) {
  Visit visit({.module = [&](const std::string& path, int64_t, std::type_index type, void* module) {
    if (matches(pattern, path)) paths_.emplace(std::pair(module, type), path);
  }});
  model.visit(visit);
  LATHE_CHECK(!paths_.empty(), "ForwardHook: no module has a path that matches ", pattern);
  mode().forward_hooks = this;
}

void ForwardHook::call(const ModuleCall& at, Variable& y) const {
  const auto found = paths_.find({at.module(), at.type()});
  if (found == paths_.end()) return;
  if (Variable replaced = f_(found->second, y); replaced.defined()) y = std::move(replaced);
}

}  // namespace lathe
