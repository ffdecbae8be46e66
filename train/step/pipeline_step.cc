#include "train/step/pipeline_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "autograd/ops.h"
#include "autograd/pipeline_stage.h"
#include "core/named_range.h"
#include "dist/world.h"
#include "train/session/passes.h"
#include "train/step/stage_link.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

using Wait = std::function<void()>;

/// Before this stage sends a gradient, the previous stage must have received all but this many of
/// the earlier gradients.
constexpr size_t most_unreceived_gradients = 1;

/// Holds the data of a micro-batch between its forward and its backward pass.
struct InFlight {
  Variable input{};   ///< input of the stage's first block, a leaf; undefined on the first stage
  Variable output{};  ///< output of the stage's last block, or the loss
  Wait sent{};        ///< waits until the output has been sent
};

/// Runs this process's stage of the pipeline.
class Stage final : public PipelineStage {
 public:
  Stage(Session& s, const StageStep& step)
      : s_(s), step_(step), link_(*s.stage), in_flight_(static_cast<size_t>(s.stage->parts())) {}

  void forward(int64_t n, int part) {
    if (part == 0) batches_[n] = next_batch();
    part_ = part;
    now_.emplace();
    const Variable loss = run_stage_forward(s_, batches_[n], step_.divisor, random(n), *this);
    if (!now_->output.defined()) refuse_hidden_blocks("dist.pipeline");
    if (link_.is_last(part)) now_->output = loss;
    in_flight_[static_cast<size_t>(part)].push_back(*std::exchange(now_, std::nullopt));

    if (part + 1 < link_.parts()) return;
    batches_.erase(n);
    losses_.push_back(link_.is_last(part)
                          ? loss.data()
                          : at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(s_.device)));
  }

  void backward(int64_t n, int part) {
    std::deque<InFlight>& of_part = in_flight_[static_cast<size_t>(part)];
    InFlight pass = std::move(of_part.front());
    of_part.pop_front();
    at::Tensor dy = s_.scaler ? s_.scaler->scale() : at::Tensor();
    if (!link_.is_last(part)) {
      dy = at::empty(pass.output.sizes(), pass.output.data().options());
      link_.receive_gradient(dy);
      world().guarded(pass.sent);
    }

    // A model may begin with frozen blocks, for which there is no backward pass.
    if (pass.output.requires_grad()) run_stage_backward(s_, pass.output, std::move(dy), random(n));
    if (link_.is_first(part)) return;
    const at::Tensor dx = pass.input.grad();
    send_gradient(dx.defined() ? dx.contiguous() : at::zeros_like(pass.input.data()));
  }

  /// Waits until all sent gradients were received, and returns the losses of all micro-batches.
  std::vector<at::Tensor> finish() {
    wait_for_gradients(0);
    const at::Tensor all = world().gather_over_pipeline(at::stack(losses_).unsqueeze(0));
    return all.select(0, -1).unbind(0);
  }
  double waited() const { return link_.waited(); }

  std::pair<size_t, size_t> blocks(size_t n) override { return link_.blocks(part_, n); }

  Variable enter(Variable x) override {
    if (now_->output.defined()) refuse_repeated_blocks();
    if (link_.is_first(part_)) return x;
    now_->input = Variable(link_.receive_activations(x.data()));
    now_->input.requires_grad_();
    // Return the result of an op, since memory.saved treats a leaf as a parameter.
    return reshape(now_->input, now_->input.sizes());
  }

  Variable leave(Variable y) override {
    now_->output = y;
    if (link_.is_last(part_)) return y;
    now_->sent = link_.send_activations(y.data().contiguous());
    throw ForwardIsDone();
  }

 private:
  Batch next_batch() const {
    const NamedRange data([] { return std::string("data"); });
    Batch batch = step_.next();
    // The loader reuses the memory of a batch, but the graphs of several micro-batches still refer
    // to their batches, so copy them. The last stage, if it has a single part, runs the backward
    // pass of each micro-batch immediately and needs no copy.
    if (link_.is_last(0)) return batch;
    for (at::Tensor* t : {&batch.inputs, &batch.starts, &batch.targets}) {
      const bool is_unused = t == &batch.targets && !link_.is_last(link_.parts() - 1);
      if (t->defined() && !is_unused) *t = t->clone();
    }
    return batch;
  }

  StepRandom random(int64_t n) const {
    return random_of(s_.config, step_.step, step_.plan.in_step(n));
  }

  void send_gradient(const at::Tensor& dx) {
    // The wait is short: the previous stage alternates between forward and backward passes as this
    // stage does, so it receives a gradient soon after this stage has sent it.
    wait_for_gradients(most_unreceived_gradients);
    gradients_.push_back(link_.send_gradient(dx));
  }

  /// Waits until the previous stage has received all but at most `most` of the sent gradients.
  void wait_for_gradients(size_t most) {
    world().guarded([&] {
      for (; gradients_.size() > most; gradients_.pop_front()) gradients_.front()();
    });
  }

  Session& s_;
  const StageStep& step_;
  StageLink link_;
  int part_ = 0;                                 // index of the part in the current forward pass
  std::optional<InFlight> now_;                  // the micro-batch of the current forward pass
  std::vector<std::deque<InFlight>> in_flight_;  // micro-batches between forward and backward pass,
                                                 // for each part
  std::map<int64_t, Batch> batches_;  // micro-batches by number; kept until the last part has used
                                      // them
  std::deque<Wait> gradients_;
  std::vector<at::Tensor> losses_;
};

}  // namespace

std::vector<StagePass> stage_schedule(int stage, int stages, int parts, int64_t micro_batches) {
  const int64_t all = micro_batches * parts, behind = stages - stage - 1;
  const int64_t other_parts = parts - 1;
  const int64_t ahead = std::min(parts == 1 ? behind : 2 * behind + other_parts * stages, all);
  // If stages have several parts, a stage runs each part for a group of micro-batches before it
  // runs the next part. A group has as many micro-batches as there are stages. With a single part,
  // a group consists of one micro-batch.
  const int64_t group = parts == 1 ? 1 : stages, in_group = group * parts;
  const auto pass = [&](int64_t i, bool is_backward) {
    const auto part = static_cast<int>(i % in_group / group);
    return StagePass{.micro_batch = i / in_group * group + i % group,
                     .is_backward = is_backward,
                     .part = is_backward ? parts - 1 - part : part};
  };

  std::vector<StagePass> passes;
  for (int64_t i = 0; i < all + ahead; ++i) {
    if (i < all) passes.push_back(pass(i, /*is_backward=*/false));
    if (i >= ahead) passes.push_back(pass(i - ahead, /*is_backward=*/true));
  }
  return passes;
}

std::vector<at::Tensor> run_stage(Session& s, const StageStep& step, double& waited) {
  const RankAxis place = world().pipeline();
  Stage stage(s, step);
  for (const auto [n, is_backward, part] :
       stage_schedule(place.rank, place.size, s.stage->parts(), step.plan.count)) {
    world().note(step.step + 1, is_backward ? RankPhase::backward : RankPhase::forward);
    if (is_backward)
      step.around_backward(n, part, [&, n = n, part = part] { stage.backward(n, part); });
    else
      stage.forward(n, part);
  }
  std::vector<at::Tensor> losses = stage.finish();
  waited += stage.waited();
  return losses;
}

}  // namespace lathe
