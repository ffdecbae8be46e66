#include "train/step/forward_passes.h"

#include <utility>

#include "autograd/pipeline_stage.h"
#include "core/error.h"
#include "dist/world.h"
#include "train/step/stage_link.h"

namespace lathe {

/// Runs this process's pipeline stage. A stage begins the next batch without waiting for the result
/// of the previous batch. If stages have several parts, a pass runs all parts.
class ForwardPasses::Stage final : public PipelineStage {
 public:
  explicit Stage(const StageParameters& stage) : link_(stage) {}

  std::pair<size_t, size_t> blocks(size_t n) override {
    if (part_ == link_.parts()) refuse_repeated_blocks();
    return link_.blocks(part_, n);
  }
  Variable enter(Variable x) override {
    return link_.is_first(part_) ? x : Variable(link_.receive_activations(x.data()));
  }
  Variable leave(Variable y) override {
    const int part = part_++;
    if (link_.is_last(part)) return y;
    finish();
    sending_ = y.data().contiguous();
    wait_ = link_.send_activations(sending_);
    if (!has_more_blocks()) throw ForwardIsDone();
    return y;
  }
  bool has_more_blocks() const override { return part_ < link_.parts(); }
  bool serves_passes_without_graph() const override { return true; }
  void begin_pass() override { part_ = 0; }
  void end_pass() override {
    if (part_ == 0) refuse_hidden_blocks("dist.pipeline");
  }

  /// Waits until the activations that were sent last have arrived.
  void finish() {
    if (const auto wait = std::exchange(wait_, nullptr)) world().guarded(wait);
  }

 private:
  StageLink link_;
  int part_ = 0;  // the part that runs next in the current pass
  at::Tensor sending_;
  std::function<void()> wait_;
};

ForwardPasses::ForwardPasses(const Session& session) : shards_(session.shards.get()) {
  mode().grad = false;
  mode().block_hooks = session.block_hooks();
  if (!session.stage) return;
  stage_ = std::make_unique<Stage>(*session.stage);
  mode().stage = stage_.get();
}

ForwardPasses::~ForwardPasses() {
  try {
    if (stage_) stage_->finish();
    if (shards_ != nullptr) shards_->end_step();
  } catch (const std::exception&) {  // a pass failed, and the error of the pass is being thrown
  }
}

}  // namespace lathe
