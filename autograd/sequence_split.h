// Declares the interface through which run_blocks() (autograd/recompute.h) divides the positions of
// each row among processes (dist/sequence_ranks.h).
#pragma once

#include "autograd/variable.h"
#include "core/mode.h"
#include "core/position_part.h"

namespace lathe {

/// Divides the positions of rows among processes while a forward pass runs its blocks.
class SequenceSplit {
 public:
  virtual ~SequenceSplit() = default;
  /// Returns the part of x, the input of the first block, at the positions of this process.
  virtual Variable enter(const Variable& x) const = 0;
  /// Returns the output of the last block at all positions, given y, the output at the positions of
  /// this process.
  virtual Variable leave(const Variable& y) const = 0;
  /// Returns which positions of a row this process has.
  virtual const SequencePart& part() const = 0;
};

/// Marks that this thread runs a block whose rows are divided, until destroyed.
struct SplitBlock : ModeGuard {
  explicit SplitBlock(const SequenceSplit& split) { mode().sequence_part = &split.part(); }
};

}  // namespace lathe
