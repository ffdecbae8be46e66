// Implements the task "classification": the model predicts one of several classes for each sample.
// The loss is the cross-entropy.
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/softmax.h>

#include <algorithm>

#include "core/io/text.h"
#include "train/tasks/task.h"

namespace lathe {
namespace {

std::string label_of(const DatasetInfo& facts, int64_t id) {
  const auto at = static_cast<size_t>(id);
  return at < facts.labels.size() ? facts.labels[at] : std::to_string(id);
}

/// The largest number of classes with a confusion matrix. A larger matrix is too wide for a
/// terminal.
constexpr int64_t max_confusion_classes = 20;

/// Counts samples by class, by predicted class, and by both.
void count_classes(const at::Tensor& targets_B, const at::Tensor& predicted_B, int64_t classes,
                   Scores& scores) {
  const at::Tensor targets = targets_B.to(at::kCPU).contiguous(),
                   predicted = predicted_B.to(at::kCPU).contiguous();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    const int64_t is = targets.const_data_ptr<int64_t>()[i],
                  read_as = predicted.const_data_ptr<int64_t>()[i];
    ++scores.sums[str("count ", is)];
    ++scores.sums[str("predicted ", read_as)];
    if (is == read_as) ++scores.sums[str("right ", is)];
    if (classes <= max_confusion_classes) ++scores.sums[str(is, " as ", read_as)];
  }
}

/// Returns, for each row, the number of classes that are likelier than the target, [B] int64. Among
/// equally likely classes, the class with the lowest index counts as the likeliest, as in `lathe
/// predict`.
at::Tensor rank_of(const at::Tensor& logits_BC, const at::Tensor& targets_B) {
  const at::Tensor targets_B1 = targets_B.unsqueeze(-1), own_B1 = logits_BC.gather(-1, targets_B1);
  const at::Tensor classes_C = at::arange(logits_BC.size(-1), targets_B.options());
  const at::Tensor precedes_BC = logits_BC.eq(own_B1).logical_and(classes_C.lt(targets_B1));
  return logits_BC.gt(own_B1).logical_or(precedes_BC).sum(-1);
}

class Classification final : public Task {
 public:
  std::string name() const override { return "classification"; }

  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    if (data.facts().task == "regression")
      fail(Exit::data, loaded.config.data.dir,
           " has numbers as targets, not classes; leave train.task out, or prepare the data with "
           "--task classification");
    return fit_examples(loaded, data, *this);
  }

  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return cross_entropy(model(batch.inputs), batch.targets, divisor);
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const Variable logits_BC = model(batch.inputs);
    scores.sums["loss"] += cross_entropy(logits_BC, batch.targets, 1).item();
    const at::Tensor likeliest_B = at::argmax(logits_BC.data(), -1);
    scores.sums["right"] += likeliest_B.eq(batch.targets).sum().item<double>();
    // With up to five classes, the right class is always among the five likeliest.
    if (logits_BC.sizes().back() > 5) {
      const at::Tensor rank_B = rank_of(logits_BC.data(), batch.targets);
      scores.sums["right_of_5"] += rank_B.lt(5).sum().item<double>();
    }
    scores.targets += batch.targets.numel();
    if (scores.detailed)
      count_classes(batch.targets, likeliest_B, logits_BC.sizes().back(), scores);
  }

  /// Returns the mean negative log-likelihood and the share of samples whose likeliest class is
  /// right. With more than five classes, also returns the share of samples whose class is among the
  /// five likeliest.
  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    std::vector<Metric> all{{"val_loss", scores.sums.at("loss") / n},
                            {"accuracy", scores.sums.at("right") / n}};
    if (const auto found = scores.sums.find("right_of_5"); found != scores.sums.end())
      all.emplace_back("top5", found->second / n);
    return all;
  }

  /// Returns precision, recall and F1 of each class, and the confusion matrix of up to
  /// `max_confusion_classes` classes. The matrix has a row for each class, and a column for each
  /// predicted class.
  Json details(const Scores& scores, const DatasetInfo& facts) const override {
    const auto sum = [&](const std::string& name) {
      const auto found = scores.sums.find(name);
      return found == scores.sums.end() ? 0 : found->second;
    };

    Json classes = Json::array(), confusion = Json::array();
    for (int64_t c = 0; c < facts.outputs; ++c) {
      const double right = sum(str("right ", c)), count = sum(str("count ", c)),
                   predicted = sum(str("predicted ", c));
      // The recall of a class that never occurs is NaN. The precision of a class that is never
      // predicted is NaN as well.
      classes.push_back({{"class", label_of(facts, c)},
                         {"count", static_cast<int64_t>(count)},
                         {"precision", json_number(right / predicted)},
                         {"recall", json_number(right / count)},
                         {"f1", json_number(2 * right / (count + predicted))}});

      if (facts.outputs > max_confusion_classes) continue;
      confusion.push_back(Json::array());
      for (int64_t p = 0; p < facts.outputs; ++p)
        confusion.back().push_back(static_cast<int64_t>(sum(str(c, " as ", p))));
    }

    Json all{{"classes", classes}};
    if (!confusion.empty()) all["confusion"] = confusion;
    return all;
  }

  std::string sample(const Model& model, const Data& data, const RunConfig&, Compute compute,
                     at::Device device, const std::function<bool()>&) const override {
    const auto batch = first_examples(data, device);
    if (!batch) return "";
    const NoGrad no_grad;
    const Autocast autocast(compute);
    const at::Tensor p_BC = at::softmax(model(batch->inputs).data().to(at::kFloat), -1),
                     id_B = at::argmax(p_BC, -1);
    std::string text;
    for (int64_t i = 0; i < batch->targets.size(0); ++i) {
      text += (i > 0 ? ", " : "") + label_of(data.facts(), batch->targets[i].item<int64_t>()) +
              " read as " + label_of(data.facts(), id_B[i].item<int64_t>()) +
              format(" (%.0f%%)", 100 * p_BC[i].max().item<double>());
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Task> make_classification_task() { return std::make_unique<Classification>(); }

}  // namespace lathe
