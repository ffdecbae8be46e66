// Implements the task "regression": the model predicts one or several numbers for each sample. The
// loss is the squared error. Targets are normalized; errors are reported in the data's units.
#include <ATen/ops/tensor.h>

#include <cmath>

#include "autograd/ops/losses.h"
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

  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    if (data.facts().task == "classification")
      fail(Exit::data, loaded.config.data.dir,
           " has classes as targets, not numbers; leave train.task out, or prepare the data with "
           "--task regression");
    return fit_examples(loaded, data, *this);
  }

  /// Returns the squared error, averaged over outputs like PyTorch's mse_loss with reduction
  /// "mean".
  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return mse_loss(model(batch.inputs), Variable(batch.targets), Reduction::sum) *
           (1 / (divisor * static_cast<double>(batch.targets.size(1))));
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo& facts,
             Scores& scores) const override {
    at::Tensor error_BO = (model(batch.inputs).data() - batch.targets).to(at::kDouble);
    if (!facts.target_scale.empty()) error_BO = error_BO * row(facts.target_scale, error_BO);
    const auto outputs = static_cast<double>(batch.targets.size(1));
    scores.sums["squares"] += error_BO.square().sum().item<double>() / outputs;
    scores.sums["absolutes"] += error_BO.abs().sum().item<double>() / outputs;
    scores.targets += batch.targets.size(0);
    if (!scores.detailed) return;

    // Normalized targets are near 0, so subtracting the square of their mean cancels few digits.
    const at::Tensor y_BO = batch.targets.to(at::kDouble);
    for (int64_t k = 0; k < y_BO.size(1); ++k) {
      const at::Tensor y = y_BO.select(1, k), error = error_BO.select(1, k);
      scores.sums[str("squares ", k)] += error.square().sum().item<double>();
      scores.sums[str("absolutes ", k)] += error.abs().sum().item<double>();
      scores.sums[str("targets ", k)] += y.sum().item<double>();
      scores.sums[str("square targets ", k)] += y.square().sum().item<double>();
    }
  }

  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    return {{"mse", scores.sums.at("squares") / n}, {"mae", scores.sums.at("absolutes") / n}};
  }

  /// Returns the errors of each output in the data's units, the coefficient of determination R^2 of
  /// each output, and the mean of these coefficients. R^2 is NaN if all targets of an output are
  /// equal.
  Json details(const Scores& scores, const DatasetInfo& facts) const override {
    const auto n = static_cast<double>(scores.targets);
    Json outputs = Json::array();
    double all_r2 = 0;
    for (int64_t k = 0; k < facts.outputs; ++k) {
      const auto sum = [&](const char* name) { return scores.sums.at(str(name, " ", k)); };
      const double scale =
          facts.target_scale.empty() ? 1 : facts.target_scale[static_cast<size_t>(k)];
      const double around_mean =
          scale * scale * (sum("square targets") - sum("targets") * sum("targets") / n);
      // If all targets are equal, the difference consists only of rounding errors.
      const bool are_equal = around_mean <= 1e-12 * scale * scale * sum("square targets");
      const double r2 = are_equal ? std::nan("") : 1 - sum("squares") / around_mean;
      all_r2 += r2 / static_cast<double>(facts.outputs);
      outputs.push_back({{"output", k},
                         {"mae", json_number(sum("absolutes") / n)},
                         {"rmse", json_number(std::sqrt(sum("squares") / n))},
                         {"r2", json_number(r2)}});
    }
    return {{"r2", json_number(all_r2)}, {"outputs", outputs}};
  }

  std::string sample(const Model& model, const Data& data, const RunConfig&, Compute compute,
                     at::Device device, const std::function<bool()>&) const override {
    const auto batch = first_examples(data, device);
    if (!batch) return "";
    const NoGrad no_grad;
    const Autocast autocast(compute);

    const DatasetInfo& facts = data.facts();
    const auto raw = [&](const at::Tensor& normalized_BO) {
      const at::Tensor y = normalized_BO.to(at::kDouble);
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
