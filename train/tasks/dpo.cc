// Implements the task "dpo", direct preference optimization (Rafailov et al. 2023): the model
// learns to prefer the chosen answer of a pair more strongly than a frozen reference model does.
// The reference is the model that the run began with, which is train.init_from or, with adapters,
// the model without its adapters.
#include "autograd/ops/losses.h"
#include "autograd/ops/math.h"
#include "train/tasks/frozen_forward.h"
#include "train/tasks/language.h"

namespace lathe {
namespace {

struct DpoConfig {
  LATHE_FIELD(double, beta, 0.1,
              "How strongly the model is kept near the reference model: the reward of an answer is "
              "beta log(p / p_reference).",
              above(0, 1000).fixed())
  LATHE_FIELD(double, label_smoothing, 0.0,
              "Assumed share of pairs whose chosen and rejected answers were swapped by mistake.",
              below(0, 0.5).fixed())
};

bool has_adapters(const RunConfig& config) {
  const int64_t* rank = config.transforms.at("adapters").find<int64_t>("rank");
  return rank != nullptr && *rank > 0;
}

class Dpo final : public TokenTask {
 public:
  Dpo() = default;
  Dpo(const DpoConfig& config, std::unique_ptr<Model> reference)
      : config_(config), reference_(std::move(reference)), is_of_run_(true) {}

  std::string name() const override { return "dpo"; }
  std::optional<TaskKeys> keys() const override {
    return TaskKeys{.name = "dpo",
                    .doc = "the task dpo: preferences (Rafailov et al. 2023)",
                    .config = AnyConfig::of<DpoConfig>()};
  }

  /// Checks that there are pairs to learn from, a model to start from, and an even batch size.
  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    const RunConfig& c = loaded.config;
    if (!data.facts().pairs) {
      fail(Exit::data, c.data.dir,
           " holds no preferences, which the task dpo learns from; prepare pairs (`lathe prepare "
           "PAIRS.jsonl --format preferences`)");
    }
    if (!has_adapters(c) && c.train.init_from.empty()) {
      fail(Exit::usage, origin_of(loaded, "train.init_from"),
           ": the task dpo needs a model to start from, which is also its reference; set "
           "train.init_from or adapters.base");
    }
    if (c.train.batch_size % 2 != 0) {
      fail(Exit::usage, origin_of(loaded, "train.batch_size"),
           ": train.batch_size = ", c.train.batch_size,
           " is odd, but each pair is two sequences, one for each answer; give an even number");
    }
    return TokenTask::fit(loaded, data);
  }

  std::string frozen_key(const RunConfig& config) const override {
    return has_adapters(config) ? "" : "train.init_from";
  }
  std::unique_ptr<const Task> of_run(const RunConfig& config,
                                     std::unique_ptr<Model> frozen) const override {
    return std::make_unique<Dpo>(config.tasks.at("dpo").as<DpoConfig>(), std::move(frozen));
  }
  int64_t targets(const Batch& batch) const override { return batch.inputs.size(0) / 2; }

  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return loss_of(margins(model, batch), divisor);
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const at::Tensor margins_P = margins(model, batch).data();
    scores.sums["loss"] += loss_of(Variable(margins_P), 1).item();
    scores.sums["preferred"] += margins_P.gt(0).sum().item<double>();
    scores.sums["margins"] += margins_P.sum(at::kDouble).item<double>();
    scores.sums["pairs"] += static_cast<double>(margins_P.numel());
    scores.targets += count_targets(batch);
  }

  /// Returns the loss, the share of pairs whose chosen answer has the larger reward, and the mean
  /// difference of the rewards.
  std::vector<Metric> metrics(const Scores& scores) const override {
    const double pairs = scores.sums.at("pairs");
    return {{"val_loss", scores.sums.at("loss") / pairs},
            {"accuracy", scores.sums.at("preferred") / pairs},
            {"margin", scores.sums.at("margins") / pairs}};
  }

 private:
  /// Returns the reward of each chosen answer minus the reward of the rejected answer, [P]. The
  /// first half of a batch's rows are the chosen answers, and the second half are the rejected
  /// answers.
  Variable margins(const Model& model, const Batch& batch) const {
    LATHE_CHECK(is_of_run_, "the task dpo needs a reference: call of_run()");
    const int64_t pairs = batch.inputs.size(0) / 2;
    // The loss of a row is its negative log-probability, so subtract in reverse order.
    const auto log_ratio = [&](const Variable& losses_B) {
      return slice(losses_B, 0, pairs, 2 * pairs) - slice(losses_B, 0, 0, pairs);
    };
    at::Tensor reference_P;
    {
      const FrozenForward frozen;
      reference_P = log_ratio(row_losses(reference_ ? *reference_ : model, batch)).data();
    }
    return (log_ratio(row_losses(model, batch)) - Variable(reference_P)) * config_.beta;
  }
  /// Returns -log(sigmoid(margin)), summed over pairs and divided by `divisor`, as a scalar. With
  /// label smoothing e, a pair counts with weight 1 - e in the given order, and with weight e with
  /// its answers exchanged.
  Variable loss_of(const Variable& margins_P, double divisor) const {
    const ExactTensors exact;
    const double e = config_.label_smoothing;
    Variable likelihood = sum(logsigmoid(margins_P)) * (1 - e);
    if (e > 0) likelihood = likelihood + sum(logsigmoid(neg(margins_P))) * e;
    return likelihood * (-1 / divisor);
  }

  DpoConfig config_;
  std::unique_ptr<Model> reference_;  // null: the reference is the model without its adapters
  bool is_of_run_ = false;
};

}  // namespace

std::unique_ptr<Task> make_dpo_task() { return std::make_unique<Dpo>(); }

}  // namespace lathe
