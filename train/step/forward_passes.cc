#include "train/step/forward_passes.h"

#include <utility>

#include "autograd/pipeline_stage.h"
#include "core/error.h"
#include "dist/world.h"
#include "train/step/stage_link.h"

namespace lathe {

/// This process's stage. Batches follow each other through the stages without waiting for the
/// result of the one before.
class ForwardPasses::Stage final : public PipelineStage {
 public:
  explicit Stage(const Session& session) : session_(session) {}

  std::pair<size_t, size_t> blocks(size_t n) override {
    return blocks_of_stage(link_, session_.stage->blocks(), n);
  }
  Variable enter(Variable x) override {
    if (std::exchange(has_entered_, true)) refuse_repeated_blocks();
    return link_.is_first() ? x : Variable(link_.receive_activations(x.data()));
  }
  Variable leave(Variable y) override {
    if (link_.is_last()) return y;
    finish();
    sending_ = y.data().contiguous();
    wait_ = link_.send_activations(sending_);
    throw ForwardIsDone();
  }
  bool serves_passes_without_graph() const override { return true; }
  void begin_pass() override { has_entered_ = false; }
  void end_pass() override {
    if (!has_entered_) refuse_hidden_blocks();
  }

  /// Waits until what was sent last has arrived.
  void finish() {
    if (const auto wait = std::exchange(wait_, nullptr)) world().guarded(wait);
  }

 private:
  const Session& session_;
  StageLink link_;
  bool has_entered_ = false;  // the blocks, in the current pass
  at::Tensor sending_;
  std::function<void()> wait_;
};

ForwardPasses::ForwardPasses(const Session& session) : shards_(session.shards.get()) {
  mode().grad = false;
  mode().block_hooks = session.block_hooks();
  if (!session.stage) return;
  stage_ = std::make_unique<Stage>(session);
  mode().stage = stage_.get();
}

ForwardPasses::~ForwardPasses() {
  try {
    if (stage_) stage_->finish();
    if (shards_ != nullptr) shards_->end_step();
  } catch (const Error&) {  // of a pass that failed: its own error is on its way
  }
}

}  // namespace lathe
