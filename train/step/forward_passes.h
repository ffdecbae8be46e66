// Declares ForwardPasses, for forward passes without an autograd graph, such as the passes of an
// evaluation. The model may be divided among several processes.
#pragma once

#include <memory>

#include "train/session/session.h"

namespace lathe {

/// Lets the model run forward passes without a graph until destroyed. All processes must run the
/// same number of passes. Blocks that dist.shard divides are gathered when they run. With
/// dist.pipeline, mode().stage is set: a pass runs the blocks of this process's stage and, unless
/// the stage is the last one, throws PipelineStage::ForwardIsDone. The last stage gets the results
/// that a single process would get.
class ForwardPasses {
 public:
  explicit ForwardPasses(const Session& session);
  ~ForwardPasses();
  ForwardPasses(const ForwardPasses&) = delete;
  ForwardPasses& operator=(const ForwardPasses&) = delete;

 private:
  class Stage;

  const ModeGuard guard_;
  ParameterShards* shards_;
  std::unique_ptr<Stage> stage_;
};

}  // namespace lathe
