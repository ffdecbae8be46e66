// Forward passes without a graph, such as those of an evaluation, of a model that is divided among
// several processes.
#pragma once

#include <memory>

#include "train/session/session.h"

namespace lathe {

/// While alive, the model can run forward passes without a graph. All processes must run the same
/// number of them. The blocks that dist.shard divides are gathered when they run. With
/// dist.pipeline, mode().stage is set: a pass runs the blocks of this process's stage, and throws
/// PipelineStage::ForwardIsDone unless this stage is the last one. The last stage has the results
/// that a single process would have.
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
