// Forward passes without a graph, as those of an evaluation, of a model that several processes
// divide among them.
#pragma once

#include <memory>

#include "train/session/session.h"

namespace lathe {

/// While alive, all processes may run equally many forward passes of the model, without a graph.
/// The blocks that dist.shard divides are gathered when they run. With dist.pipeline, mode().stage
/// is set: a pass runs the blocks of this process's stage, and throws PipelineStage::ForwardIsDone
/// unless that is the last one. The last stage has the results that one process would have.
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
