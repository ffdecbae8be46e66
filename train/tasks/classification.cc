// Classification: one of several classes for each sample, by cross-entropy.
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>

#include <algorithm>

#include "core/io/text.h"
#include "train/tasks/task.h"

namespace lathe {
namespace {

std::string label_of(const DatasetInfo& facts, int64_t id) {
  const auto at = static_cast<size_t>(id);
  return at < facts.labels.size() ? facts.labels[at] : std::to_string(id);
}

class Classification final : public Task {
 public:
  std::string name() const override { return "classification"; }

  ModelSizes fit(LoadedConfig& loaded, const Data& data) const override {
    if (data.facts().task == "regression")
      fail(Exit::data, loaded.config.data.dir,
           " has numbers for targets, not classes; it is made for regression");
    return fit_examples(loaded, data, *this);
  }

  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return cross_entropy(model(batch.inputs), batch.targets, divisor);
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const Variable logits_BC = model(batch.inputs);
    scores.sums["loss"] += cross_entropy(logits_BC, batch.targets, 1).item();
    const int64_t k = std::min<int64_t>(5, logits_BC.sizes().back());
    const at::Tensor likeliest_Bk = std::get<1>(at::topk(logits_BC.data(), k, -1));
    const at::Tensor right_Bk = likeliest_Bk.eq(batch.targets.unsqueeze(-1));
    scores.sums["right"] += right_Bk.select(-1, 0).sum().item<double>();
    scores.sums["right_of_5"] += right_Bk.sum().item<double>();
    scores.targets += batch.targets.numel();
  }

  /// Returns the negative log-likelihood, the share of samples whose likeliest class is right, and
  /// the share of those whose class is among the five likeliest.
  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    return {{"val_loss", scores.sums.at("loss") / n},
            {"accuracy", scores.sums.at("right") / n},
            {"top5", scores.sums.at("right_of_5") / n}};
  }

  std::string sample(const Model& model, const Data& data, const RunConfig&, Compute compute,
                     at::Device device, const std::function<bool()>&) const override {
    const auto batch = first_examples(data, device);
    if (!batch) return "";
    const NoGrad no_grad;
    const Autocast autocast(compute);
    const auto [p_B1, id_B1] =
        at::topk(at::softmax(model(batch->inputs).data().to(at::kFloat), -1), 1, -1);
    std::string text;
    for (int64_t i = 0; i < batch->targets.size(0); ++i) {
      text += (i > 0 ? ", " : "") + label_of(data.facts(), batch->targets[i].item<int64_t>()) +
              " read as " + label_of(data.facts(), id_B1[i][0].item<int64_t>()) +
              format(" (%.0f%%)", 100 * p_B1[i][0].item<double>());
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Task> make_classification_task() { return std::make_unique<Classification>(); }

}  // namespace lathe
