#include "train/step/pipeline_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "autograd/ops.h"
#include "autograd/pipeline_stage.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/named_range.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/session/passes.h"
#include "train/step/stage_link.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

using Wait = std::function<void()>;

/// A micro-batch between its forward and its backward pass.
struct InFlight {
  Variable input{};   ///< of the first block, a leaf; undefined on the first stage
  Variable output{};  ///< of the last block, or the loss
  Wait sent{};        ///< waits until the output has left
};

/// This process's side of the pipeline.
class Stage final : public PipelineStage {
 public:
  Stage(Session& s, const StageStep& step) : s_(s), step_(step) {}

  void forward(int64_t n) {
    const Batch batch = next_batch();
    now_.emplace();
    const Variable loss = run_stage_forward(s_, batch, step_.divisor, random(n), *this);
    if (!now_->output.defined()) refuse_hidden_blocks();
    if (link_.is_last()) now_->output = loss;
    losses_.push_back(link_.is_last()
                          ? loss.data()
                          : at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(s_.device)));
    in_flight_.push_back(*std::exchange(now_, std::nullopt));
  }

  void backward(int64_t n) {
    InFlight pass = std::move(in_flight_.front());
    in_flight_.pop_front();
    at::Tensor dy = s_.scaler ? s_.scaler->scale() : at::Tensor();
    if (!link_.is_last()) {
      dy = at::empty(pass.output.sizes(), pass.output.data().options());
      link_.receive(dy, link_.rank() + 1);
      pass.sent();
    }

    // Frozen blocks may begin a model.
    if (pass.output.requires_grad()) run_stage_backward(s_, pass.output, std::move(dy), random(n));
    if (link_.is_first()) return;
    const at::Tensor dx = pass.input.grad();
    send_gradient(dx.defined() ? dx.contiguous() : at::zeros_like(pass.input.data()));
  }

  /// Waits for what was sent, and returns the losses of all micro-batches.
  std::vector<at::Tensor> finish() {
    wait_for_gradients(0);
    const at::Tensor all = world().gather_over_pipeline(at::stack(losses_).unsqueeze(0));
    return all.select(0, -1).unbind(0);
  }
  double waited() const { return link_.waited(); }

  std::pair<size_t, size_t> blocks(size_t n) override {
    return blocks_of_stage(link_, s_.stage->blocks(), n);
  }

  Variable enter(Variable x) override {
    if (now_->output.defined()) refuse_repeated_blocks();
    if (link_.is_first()) return x;
    now_->input = Variable(link_.receive_activations(x.data()));
    now_->input.requires_grad_();
    // What an op computed, since memory.saved takes a leaf for a parameter.
    return reshape(now_->input, now_->input.sizes());
  }

  Variable leave(Variable y) override {
    now_->output = y;
    if (link_.is_last()) return y;
    now_->sent = link_.send_activations(y.data().contiguous());
    throw ForwardIsDone();
  }

 private:
  Batch next_batch() const {
    const NamedRange data([] { return std::string("data"); });
    Batch batch = step_.next();
    // The loader reuses the memory of a batch, which the graphs of several micro-batches keep.
    if (link_.is_last()) return batch;
    for (at::Tensor* t : {&batch.inputs, &batch.starts}) {
      if (t->defined()) *t = t->clone();
    }
    return batch;
  }

  StepRandom random(int64_t n) const {
    return random_of(s_.config, step_.step, step_.plan.in_step(n));
  }

  void send_gradient(const at::Tensor& dx) {
    // The stage before has received all gradients but the last two before it sends the activations
    // that led to this one, so this does not wait.
    wait_for_gradients(1);
    world().guarded([&] { gradients_.push_back(world().stages().send(dx, link_.rank() - 1)); });
  }

  /// Waits until at most so many gradients are being sent.
  void wait_for_gradients(size_t most) {
    world().guarded([&] {
      for (; gradients_.size() > most; gradients_.pop_front()) gradients_.front()();
    });
  }

  Session& s_;
  const StageStep& step_;
  StageLink link_;
  std::optional<InFlight> now_;  // during a forward pass
  std::deque<InFlight> in_flight_;
  std::deque<Wait> gradients_;
  std::vector<at::Tensor> losses_;
};

}  // namespace

std::vector<StagePass> stage_schedule(int stage, int stages, int64_t micro_batches) {
  const int64_t ahead = std::min<int64_t>(stages - stage - 1, micro_batches);
  std::vector<StagePass> passes;
  for (int64_t n = 0; n < micro_batches + ahead; ++n) {
    if (n < micro_batches) passes.push_back({n, /*is_backward=*/false});
    if (n >= ahead) passes.push_back({n - ahead, /*is_backward=*/true});
  }
  return passes;
}

std::vector<at::Tensor> run_stage(Session& s, const StageStep& step, double& waited) {
  const RankAxis place = world().pipeline();
  Stage stage(s, step);
  for (const StagePass& pass : stage_schedule(place.rank, place.size, step.plan.count)) {
    const int64_t n = pass.micro_batch;
    world().note(step.step, pass.is_backward ? "backward" : "forward");
    if (pass.is_backward)
      step.around_backward(n, [&] { stage.backward(n); });
    else
      stage.forward(n);
  }
  std::vector<at::Tensor> losses = stage.finish();
  waited += stage.waited();
  return losses;
}

}  // namespace lathe
