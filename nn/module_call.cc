// Implements ModuleCall. The calls of a thread form a chain on the stack. No path is stored: when
// one is needed (for a shape error or an anomaly), the outermost module is walked to find this
// call's module by its address and type. The sizes of named dims are on the stack too.
#include "nn/module_call.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>

#include "core/dtype.h"
#include "core/error.h"
#include "nn/hooks.h"

namespace lathe {

std::set<std::string>& module_registry() {
  static std::set<std::string> names;
  return names;
}

namespace {

std::string demangled_name(const char* mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 ? text : mangled;
  std::free(text);
  return name;
}

std::string last_part(const std::string& name) {
  const size_t colon = name.substr(0, name.find('<')).rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

/// Returns the letters of a spec's dims; sets `any_before` if the spec begins with "...".
std::string letters_of(std::string_view spec, bool& any_before) {
  any_before = spec.starts_with("...");
  std::string letters;
  for (const char c : spec) {
    if (c != ' ' && c != '.') letters += c;
  }
  return letters;
}

}  // namespace

std::string detail::type_text(const std::type_info& type) {
  return last_part(demangled_name(type.name()));
}

bool detail::register_module(const std::type_info& type) {
  const std::string name = demangled_name(type.name());
  if (name.starts_with("lathe::") && name.find("(anonymous") == std::string::npos &&
      name.find("::", 7) == std::string::npos)
    module_registry().insert(name.substr(7));
  return true;
}

int64_t ModuleCall::size(char dim) const {
  for (const Dim& d : dims_) {
    if (d.name == dim) return d.size;
  }
  fail(Exit::internal, text(), ": no input has a dim ", std::string(1, dim),
       "; is one of the inputs undefined?");
}

void ModuleCall::check(const char* name, const at::Tensor& x, std::string_view spec, bool is_result,
                       bool is_required) {
  if (!x.defined()) {
    if (is_required) fail_mismatch(name, x, spec, false, "it must hold a tensor");
    return;
  }

  // Compare letter by letter from the last dim, so that "..." can stand for any number of leading
  // dims. This code must not allocate memory, since it runs in every call.
  int64_t letters = 0;
  for (const char c : spec) letters += c != ' ' && c != '.' ? 1 : 0;
  if (spec.starts_with('.') ? letters > x.dim() : letters != x.dim())
    fail_mismatch(name, x, spec, is_result,
                  str("it has ", x.dim(), x.dim() == 1 ? " dim" : " dims"));

  int64_t dim = x.dim();
  const int tensor = static_cast<int>(seen_.size());
  for (size_t at = spec.size(); at-- > 0;) {
    const char c = spec[at];
    if (c == ' ') continue;
    if (c == '.') break;

    const int64_t size = x.size(--dim);
    auto found =
        std::find_if(dims_.begin(), dims_.end(), [c](const Dim& d) { return d.name == c; });
    if (found == dims_.end()) {
      // The first tensor that has a letter binds it, and is remembered for the message about a
      // later mismatch.
      dims_.push_back({.name = c, .size = size, .tensor = tensor});
    } else if (found->size != size) {
      std::string why = str(c, " is ", size, " here and ", found->size);
      if (found->tensor == tensor) {
        why += " in another of its dims";
      } else if (found->tensor >= 0) {
        const Seen& other = seen_[static_cast<size_t>(found->tensor)];
        why += str(" in ", other.name, " ", describe(other.tensor));
      } else {
        why += " in the module";
      }
      fail_mismatch(name, x, spec, is_result, why);
    }
  }

  seen_.push_back({name, x});
}

void ModuleCall::fail_mismatch(const char* name, const at::Tensor& x, std::string_view spec,
                               bool is_result, const std::string& why) const {
  bool any_before = false;
  const std::string letters = letters_of(spec, any_before);
  std::string wanted = any_before ? "..." : "";
  for (const char c : letters) {
    wanted += (wanted.empty() ? "" : ",") + std::string(1, c);
    const auto found =
        std::find_if(dims_.begin(), dims_.end(), [c](const Dim& d) { return d.name == c; });
    if (found != dims_.end() && found->tensor != static_cast<int>(seen_.size()))
      wanted += "=" + std::to_string(found->size);
  }
  const char* article = is_result ? "a " : std::string(name) == "input" ? "an " : "";
  fail(Exit::internal, text(), ": expected ", article, name, " of shape [", wanted, "], got ",
       describe(x), "; ", why);
}

std::string ModuleCall::path() const {
  const ModuleCall* outermost = this;
  while (outermost->outer_ != nullptr) outermost = outermost->outer_;
  if (outermost == this) return "";
  std::string found;
  Visit visit({.module = [&](const std::string& path, int64_t, std::type_index type, void* module) {
    if (found.empty() && module == module_ && type == type_) found = path;
  }});
  outermost->walk_(outermost->module_, visit);
  return found;
}

std::string ModuleCall::text() const {
  const std::string at = path(), type = last_part(demangled_name(type_.name()));
  return at.empty() ? type : at + " (" + type + ")";
}

Variable ModuleCall::run_hooks(Variable y) const {
  for (const ForwardHook* hook = mode().forward_hooks; hook != nullptr; hook = hook->outer())
    hook->call(*this, y);
  return y;
}

}  // namespace lathe
