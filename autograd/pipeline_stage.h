// What run_blocks() (autograd/recompute.h) asks a stage of a pipeline, which runs some of a model's
// repeated blocks. Other processes run the blocks before and after them.
#pragma once

#include <cstddef>
#include <utility>

#include "autograd/variable.h"

namespace lathe {

/// A stage of a pipeline. The thread's mode has one during a forward pass that the stage shares.
class PipelineStage {
 public:
  /// Thrown by leave(): what follows the blocks is the last stage's work.
  struct ForwardIsDone {};

  virtual ~PipelineStage() = default;
  /// Returns which of the model's `n` blocks this stage runs: [first, end).
  virtual std::pair<size_t, size_t> blocks(size_t n) = 0;
  /// Returns the input of its first block. `x`: what this process computed before the blocks, which
  /// the first stage alone needs.
  virtual Variable enter(Variable x) = 0;
  /// Takes the output of its last block and returns it on the last stage.
  virtual Variable leave(Variable y) = 0;
};

/// Throws Exit::usage: the blocks take something else than one Variable.
[[noreturn]] void refuse_stages();

}  // namespace lathe
