// Declares the interface of a pipeline stage for run_blocks() (autograd/recompute.h). A stage runs
// some of a model's repeated blocks; other processes run the blocks before and after them.
#pragma once

#include <cstddef>
#include <utility>

#include "autograd/variable.h"

namespace lathe {

/// A stage of a pipeline. Mode::stage points to the stage during a forward pass in which the stage
/// takes part.
class PipelineStage {
 public:
  /// Thrown by leave() after a stage's last block, to end the forward pass. The last stage does not
  /// throw it, because it also computes the part of the model after the blocks.
  struct ForwardIsDone {};

  virtual ~PipelineStage() = default;
  /// Returns which of the model's `n` blocks this stage runs: [first, end).
  virtual std::pair<size_t, size_t> blocks(size_t n) = 0;
  /// Returns the input of this stage's first block. `x` is the result of the model's part before
  /// the blocks, which only the first stage uses.
  virtual Variable enter(Variable x) = 0;
  /// Takes the output `y` of this stage's last block. The last stage returns y; other stages send y
  /// to the next stage.
  virtual Variable leave(Variable y) = 0;
  /// Returns whether the current pass runs more blocks of this stage. Must be called only if
  /// leave() has not ended the pass.
  virtual bool has_more_blocks() const { return false; }
  /// Returns whether passes that record no graph also run only this stage's blocks. If false, such
  /// passes run all blocks, because they may belong to another model.
  virtual bool serves_passes_without_graph() const { return false; }
  /// Called before each pass that records no graph and in which the stage takes part.
  virtual void begin_pass() {}
  /// Called after each pass for which begin_pass() was called, unless leave() has ended the pass.
  /// Throws Exit::usage if the pass did not run any blocks with run_blocks().
  virtual void end_pass() {}
};

/// Throws Exit::usage: `key` needs blocks that take one Variable, but the model's blocks have other
/// arguments.
[[noreturn]] void refuse_several_inputs(const char* key);
/// Throws Exit::usage: the model runs its blocks several times in a forward pass.
[[noreturn]] void refuse_repeated_blocks();
/// Throws Exit::usage: `key` needs a model that runs its blocks with run_blocks(), but the model
/// does not.
[[noreturn]] void refuse_hidden_blocks(const char* key);

}  // namespace lathe
