#include "train/step/pipeline_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "autograd/ops.h"
#include "autograd/pipeline_stage.h"
#include "core/dry_run.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/named_range.h"
#include "core/timing.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

using Wait = std::function<void()>;

/// The dtype and the sizes of a tensor, which are sent before it.
constexpr size_t header_size = 10;

at::Tensor header_of(const at::Tensor& t) {
  LATHE_CHECK(t.dim() + 2 <= static_cast<int64_t>(header_size), "a tensor of ", t.dim(),
              " dims between blocks");
  at::Tensor header = at::zeros({static_cast<int64_t>(header_size)}, at::kLong);
  auto* const fields = header.mutable_data_ptr<int64_t>();
  fields[0] = static_cast<int64_t>(t.scalar_type());
  fields[1] = t.dim();
  std::copy(t.sizes().begin(), t.sizes().end(), fields + 2);
  return header;
}

/// A micro-batch between its forward and its backward pass.
struct InFlight {
  Variable input{};   ///< of the first block, a leaf; undefined on the first stage
  Variable output{};  ///< of the last block, or the loss
  Wait sent{};        ///< waits until the output has left
};

/// This process's side of the pipeline.
class Stage final : public PipelineStage {
 public:
  Stage(Session& s, const StageStep& step, double& waited)
      : s_(s), step_(step), waited_(waited), place_(world().pipeline()) {}

  void forward(int64_t n) {
    const Batch batch = next_batch();
    now_.emplace();
    const Variable loss = run_stage_forward(s_, batch, step_.divisor, random(n), *this);
    if (!now_->output.defined()) {
      fail(Exit::usage, "dist.pipeline needs a model that runs its blocks by run_blocks() ",
           "(autograd/recompute.h); set it to 1");
    }
    if (is_last()) now_->output = loss;
    losses_.push_back(is_last()
                          ? loss.data()
                          : at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(s_.device)));
    in_flight_.push_back(*std::exchange(now_, std::nullopt));
  }

  void backward(int64_t n) {
    InFlight pass = std::move(in_flight_.front());
    in_flight_.pop_front();
    at::Tensor dy = s_.scaler ? s_.scaler->scale() : at::Tensor();
    if (!is_last()) {
      dy = at::empty(pass.output.sizes(), pass.output.data().options());
      receive(dy, place_.rank + 1);
      pass.sent();
    }

    // Frozen blocks may begin a model.
    if (pass.output.requires_grad()) run_stage_backward(s_, pass.output, std::move(dy), random(n));
    if (is_first()) return;
    const at::Tensor dx = pass.input.grad();
    send_gradient(dx.defined() ? dx.contiguous() : at::zeros_like(pass.input.data()));
  }

  /// Waits for what was sent, and returns the losses of all micro-batches.
  std::vector<at::Tensor> finish() {
    wait_for_gradients(0);
    const at::Tensor all = world().gather_over_pipeline(at::stack(losses_).unsqueeze(0));
    return all.select(0, place_.size - 1).unbind(0);
  }

  std::pair<size_t, size_t> blocks(size_t n) override {
    const ElementRange own = s_.stage->blocks();
    LATHE_CHECK(place_.rank + 1 < place_.size || own.end == static_cast<int64_t>(n),
                "dist.pipeline: the model runs ", n, " blocks, but its parameters are in ",
                own.end);
    return {own.begin, own.end};
  }

  Variable enter(Variable x) override {
    if (now_->output.defined()) {
      fail(Exit::usage,
           "dist.pipeline needs a model that runs its blocks once in each forward pass, "
           "and model.kind = \"",
           s_.config.model.kind, "\" runs them several times; set it to 1");
    }
    if (is_first()) return x;
    now_->input = Variable(receive_like(x.data()));
    now_->input.requires_grad_();
    // What an op computed, since memory.saved takes a leaf for a parameter.
    return reshape(now_->input, now_->input.sizes());
  }

  Variable leave(Variable y) override {
    now_->output = y;
    if (is_last()) return y;

    const at::Tensor data = y.data().contiguous();
    Group& group = world().stages();
    world().guarded([&] {
      const Wait header = group.send(header_of(data), place_.rank + 1);
      const Wait values = group.send(data, place_.rank + 1);
      now_->sent = [header, values] {
        header();
        values();
      };
    });
    throw ForwardIsDone();
  }

 private:
  bool is_first() const { return place_.rank == 0; }
  bool is_last() const { return place_.rank + 1 == place_.size; }
  Batch next_batch() const {
    const NamedRange data([] { return std::string("data"); });
    Batch batch = step_.next();
    // The loader reuses the memory of a batch, which the graphs of several micro-batches keep.
    if (is_last()) return batch;
    for (at::Tensor* t : {&batch.inputs, &batch.starts}) {
      if (t->defined()) *t = t->clone();
    }
    return batch;
  }

  StepRandom random(int64_t n) const {
    return random_of(s_.config, step_.step, step_.plan.in_step(n));
  }

  void receive(at::Tensor& t, int from) {
    const auto begin = Clock::now();
    world().guarded([&] { world().stages().receive(t, from); });
    waited_ += seconds_since(begin);
  }

  /// Returns what the stage before has sent. A dry run takes it for a tensor like `x`.
  at::Tensor receive_like(const at::Tensor& x) {
    const MemoryScope memory(Memory::activations);
    at::Tensor t = at::empty_like(x);
    if (!is_dry_run()) {
      at::Tensor header = at::empty({static_cast<int64_t>(header_size)}, at::kLong);
      receive(header, place_.rank - 1);
      const int64_t* const fields = header.const_data_ptr<int64_t>();
      t = at::empty({fields + 2, static_cast<size_t>(fields[1])},
                    x.options().dtype(static_cast<at::ScalarType>(fields[0])));
    }
    receive(t, place_.rank - 1);
    return t;
  }

  void send_gradient(const at::Tensor& dx) {
    // The stage before has received all gradients but the last two before it sends the activations
    // that led to this one, so this does not wait.
    wait_for_gradients(1);
    world().guarded([&] { gradients_.push_back(world().stages().send(dx, place_.rank - 1)); });
  }

  /// Waits until at most so many gradients are being sent.
  void wait_for_gradients(size_t most) {
    world().guarded([&] {
      for (; gradients_.size() > most; gradients_.pop_front()) gradients_.front()();
    });
  }

  Session& s_;
  const StageStep& step_;
  double& waited_;
  RankAxis place_;
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
  Stage stage(s, step, waited);
  for (const StagePass& pass : stage_schedule(place.rank, place.size, step.plan.count)) {
    const int64_t n = pass.micro_batch;
    world().note(step.step, pass.is_backward ? "backward" : "forward");
    if (pass.is_backward)
      step.around_backward(n, [&] { stage.backward(n); });
    else
      stage.forward(n);
  }
  return stage.finish();
}

}  // namespace lathe
