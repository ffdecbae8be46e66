#include "core/named_range.h"

#include <ATen/record_function.h>

namespace lathe {

void* NamedRange::begin(std::string_view name) {
  auto* scope = new at::RecordFunction(at::RecordScope::USER_SCOPE);
  if (scope->isActive()) scope->before(std::string(name));
  return scope;
}

void NamedRange::end(void* scope) { delete static_cast<at::RecordFunction*>(scope); }

}  // namespace lathe
