// Declares objects that control which pages of parameters are resident while blocks run
// (memory.offload = "parameters").
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "autograd/parameter.h"
#include "core/mapped_memory.h"
#include "core/memory.h"
#include "core/mode.h"

namespace lathe {

/// Prefetches the parameters of the next block while a block runs, and releases the pages of the
/// previous block (core/mapped_memory.h). No value changes, since released pages are read from disk
/// again when they are used.
class ParameterPages final : public BlockHooks {
 public:
  /// Manages the elements of `parameters` whose memory is mapped. Their tensors must not be
  /// replaced.
  explicit ParameterPages(std::span<const NamedParameter> parameters);

  void begin(size_t block, bool is_recomputed) override;
  void end(size_t block, bool is_recomputed) override;
  bool serves_any_pass() const override { return true; }

  /// Releases the pages of one parameter of a block, if its memory is mapped. Call this function
  /// after an update that comes later than the backward pass of the block.
  static void release(const NamedParameter& parameter);

  /// Returns an estimate of the bytes of parameters that are resident at a time: the parameters
  /// outside of blocks, and the parameters of the largest block.
  int64_t resident_bytes() const { return resident_bytes_; }

 private:
  template <class F>
  void each(int64_t block, F&& f) const;

  std::map<int64_t, std::vector<at::Tensor>> blocks_;  // parameters and their working copies, by
                                                       // block number
  int64_t resident_bytes_ = 0;
};

/// Takes the memory of new parameters and working copies from `mapped` until destroyed, so that
/// they need not all be resident at the same time. Does nothing if `mapped` is null.
class MapParameters {
 public:
  explicit MapParameters(MappedMemory* mapped) {
    if (mapped != nullptr)
      from_disk_.emplace(*mapped, Memory::parameters, /*least=*/size_t{64} << 10);
  }

 private:
  std::optional<UseMemorySource> from_disk_;
};

}  // namespace lathe
