// Implements the task, which predicts quantiles with the pinball loss. Koenker and Bassett 1978,
// "Regression quantiles".
#include <ATen/ops/tensor.h>

#include "lathe/autograd/ops.h"
#include "lathe/core/io/text.h"
#include "own_task.h"

namespace own {
namespace {

using namespace lathe;

/// Returns the loss [B, Q] of predictions s = predicted_BQ for targets y = y_B1. For quantile q,
/// the loss is q (y - s) where y is above s, and (1 - q) (s - y) where y is below s.
Variable pinball(const Variable& predicted_BQ, const at::Tensor& y_B1) {
  const at::Tensor q_Q =
      at::tensor({0.1, 0.5, 0.9}, at::TensorOptions(y_B1.device()).dtype(at::kFloat));
  const Variable above_BQ = Variable(y_B1) - predicted_BQ;
  return above_BQ * q_Q + relu(-above_BQ);
}

class Quantiles final : public Task {
 public:
  std::string name() const override { return "quantiles"; }

  ModelSizes sizes(const DatasetInfo& facts) const override { return {facts.input_sizes, 3}; }
  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    return fit_examples(loaded, data, *this);
  }
  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return sum(pinball(model(batch.inputs), batch.targets)) * (1 / divisor);
  }
  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const Variable predicted_BQ = model(batch.inputs);
    const at::Tensor below_BQ = batch.targets.le(predicted_BQ.data());
    scores.sums["pinball"] += sum(pinball(predicted_BQ, batch.targets)).item();
    scores.sums["within"] +=
        below_BQ.select(1, 2).sum().item<double>() - below_BQ.select(1, 0).sum().item<double>();
    scores.targets += batch.targets.size(0);
  }
  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    return {{"pinball", scores.sums.at("pinball") / n},
            {"within_80", scores.sums.at("within") / n}};
  }
  std::string sample(const Model& model, const Data& data, const RunConfig&, Compute compute,
                     at::Device device, const std::function<bool()>&) const override {
    const auto batch = first_examples(data, device);
    if (!batch) return "";
    const NoGrad no_grad;
    const Autocast autocast(compute);
    const at::Tensor predicted_BQ = model(batch->inputs).data();
    const auto number = [](const at::Tensor& t) { return t.item<double>(); };
    return format("%.3g, predicted as %.3g to %.3g", number(batch->targets[0][0]),
                  number(predicted_BQ[0][0]), number(predicted_BQ[0][2]));
  }
};

}  // namespace

std::unique_ptr<Task> make_quantiles() { return std::make_unique<Quantiles>(); }

}  // namespace own
