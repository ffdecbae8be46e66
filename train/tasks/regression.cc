// Regression: one or several numbers for each sample, by squared error. Targets are normalized;
// errors are reported in the data's units.
#include <ATen/ops/tensor.h>

#include "core/io/text.h"
#include "train/tasks/task.h"

namespace lathe {
namespace {

at::Tensor row(const std::vector<double>& values, const at::Tensor& like) {
  return at::tensor(values, at::kDouble).to(like.device());
}

class Regression final : public Task {
 public:
  std::string name() const override { return "regression"; }

  ModelSizes fit(LoadedConfig& loaded, const Data& data) const override {
    if (data.facts().task == "classification")
      fail(Exit::data, loaded.config.data.dir,
           " has classes for targets, not numbers; it is made for classification");
    return fit_examples(loaded, data, *this);
  }

  /// Returns the squared error, averaged over outputs as by torch's mse_loss with reduction "mean".
  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    const Variable error_BO = model(batch.inputs) - Variable(batch.targets);
    return sum(error_BO * error_BO) * (1 / (divisor * static_cast<double>(batch.targets.size(1))));
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo& facts,
             Scores& scores) const override {
    at::Tensor error_BO = (model(batch.inputs).data() - batch.targets).to(at::kDouble);
    if (!facts.target_scale.empty()) error_BO = error_BO * row(facts.target_scale, error_BO);
    const auto outputs = static_cast<double>(batch.targets.size(1));
    scores.sums["squares"] += error_BO.square().sum().item<double>() / outputs;
    scores.sums["absolutes"] += error_BO.abs().sum().item<double>() / outputs;
    scores.targets += batch.targets.size(0);
  }

  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    return {{"mse", scores.sums.at("squares") / n}, {"mae", scores.sums.at("absolutes") / n}};
  }

  std::string sample(const Model& model, const Data& data, const RunConfig&, Compute compute,
                     at::Device device, const std::function<bool()>&) const override {
    const auto batch = first_examples(data, device);
    if (!batch) return "";
    const NoGrad no_grad;
    const Autocast autocast(compute);

    const DatasetInfo& facts = data.facts();
    const auto raw = [&](const at::Tensor& normalised_BO) {
      const at::Tensor y = normalised_BO.to(at::kDouble);
      return facts.target_scale.empty()
                 ? y
                 : y * row(facts.target_scale, y) + row(facts.target_mean, y);
    };

    const at::Tensor is_BO = raw(batch->targets), said_BO = raw(model(batch->inputs).data());
    std::string text;
    for (int64_t i = 0; i < is_BO.size(0); ++i)
      text += format("%s%.4g read as %.4g", i > 0 ? ", " : "", is_BO[i][0].item<double>(),
                     said_BO[i][0].item<double>());
    return text;
  }
};

}  // namespace

std::unique_ptr<Task> make_regression_task() { return std::make_unique<Regression>(); }

}  // namespace lathe
