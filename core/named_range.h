// Declares named ranges on a thread's timeline. LibTorch's profilers show them in Kineto traces or
// as NVTX ranges.
#pragma once

#include <string>

#include "core/mode.h"

namespace lathe {

/// A user scope of ATen's RecordFunction that lasts from construction to destruction. The name of
/// the scope is the result of `name()`. Does nothing if Mode::ranges is false. Construct it on the
/// stack.
class NamedRange {
 public:
  template <class Name>
  explicit NamedRange(const Name& name) {
    if (mode().ranges) [[unlikely]]
      scope_ = begin(name());
  }
  ~NamedRange() {
    if (scope_ != nullptr) [[unlikely]]
      end(scope_);
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  static void* begin(std::string_view name);
  static void end(void* scope);

  void* scope_ = nullptr;
};

}  // namespace lathe
