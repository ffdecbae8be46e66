// Implements the task "distill", knowledge distillation: the model learns the distribution of a
// frozen teacher over the next token. Hinton et al. 2015, "Distilling the knowledge in a neural
// network".
#include "autograd/ops/losses.h"
#include "nn/layers/documents.h"
#include "train/tasks/frozen_forward.h"
#include "train/tasks/language.h"

namespace lathe {
namespace {

struct DistillConfig {
  LATHE_FIELD(std::string, teacher, "",
              "Run, checkpoint or Hugging Face folder of the teacher, which must have the "
              "tokenizer of the data.",
              anything().fixed())
  LATHE_FIELD(double, temperature, 2.0,
              "Temperature: the logits of both models are divided by it before their distributions "
              "are compared.",
              between(0.1, 100).fixed())
  LATHE_FIELD(double, mix, 0.5,
              "Weight of the teacher in the loss. The cross-entropy with the data has "
              "the remaining weight.",
              above(0, 1).fixed())
};

class Distill final : public TokenTask {
 public:
  Distill() = default;
  Distill(const DistillConfig& config, std::unique_ptr<Model> teacher)
      : config_(config), teacher_(std::move(teacher)) {}

  std::string name() const override { return "distill"; }
  std::optional<TaskKeys> keys() const override {
    return TaskKeys{.name = "distill",
                    .doc = "the task distill: a teacher (Hinton et al. 2015)",
                    .config = AnyConfig::of<DistillConfig>()};
  }
  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    check_no_pairs(loaded, data);
    return TokenTask::fit(loaded, data);
  }

  std::string frozen_key(const RunConfig&) const override { return "distill.teacher"; }
  /// Throws Exit::usage if the sizes of the two vocabularies differ.
  std::unique_ptr<const Task> of_run(const RunConfig& config,
                                     std::unique_ptr<Model> frozen) const override {
    const int64_t ours = batch_sizes(config).vocab_size;
    const int64_t theirs = frozen->has_head() ? frozen->head_weight().sizes()[0] : ours;
    if (theirs != ours) {
      fail(Exit::usage, "distill.teacher has a vocabulary of ", theirs,
           ", but the model has a vocabulary of ", ours, "; set model.vocab_size = ", theirs,
           " or use another teacher");
    }
    return std::make_unique<Distill>(config.tasks.at("distill").as<DistillConfig>(),
                                     std::move(frozen));
  }

  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    const Parts parts = parts_of(model, batch);
    return (parts.cross_entropy * (1 - config_.mix) + parts.divergence * config_.mix) *
           (1 / divisor);
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const Parts parts = parts_of(model, batch);
    scores.sums["cross_entropy"] += parts.cross_entropy.item();
    scores.sums["divergence"] += parts.divergence.item();
    scores.targets += count_targets(batch);
  }

  /// Returns the loss and its two parts: the cross-entropy with the data, and the divergence from
  /// the teacher at the configured temperature, multiplied by the square of the temperature.
  std::vector<Metric> metrics(const Scores& scores) const override {
    const auto n = static_cast<double>(scores.targets);
    const double data = scores.sums.at("cross_entropy") / n,
                 teacher = scores.sums.at("divergence") / n;
    return {{"val_loss", (1 - config_.mix) * data + config_.mix * teacher},
            {"cross_entropy", data},
            {"divergence", teacher}};
  }

 private:
  /// Holds sums over the targets of a batch, each of shape [].
  struct Parts {
    Variable cross_entropy, divergence;
  };
  /// Returns the logits [N, V] in float32.
  static Variable logits_of(const Model& model, const Batch& batch) {
    const SeparateDocuments documents(batch.starts);
    const Variable logits_BTV = model(batch.inputs);
    return cast(reshape(logits_BTV, {-1, logits_BTV.sizes().back()}), at::kFloat);
  }

  Parts parts_of(const Model& model, const Batch& batch) const {
    LATHE_CHECK(teacher_ != nullptr, "the task distill needs a teacher: call of_run()");
    const double t = config_.temperature;
    const at::Tensor targets_N = batch.targets.reshape({-1});
    at::Tensor teacher_NV;  // log-probabilities
    {
      const FrozenForward frozen;
      teacher_NV = log_softmax(logits_of(*teacher_, batch) * (1 / t), 1).data();
    }

    const Variable logits_NV = logits_of(model, batch);
    const Variable divergence_NV = kl_div(log_softmax(logits_NV * (1 / t), 1), Variable(teacher_NV),
                                          Reduction::none, /*log_target=*/true);
    const at::Tensor is_learned_N = targets_N.ne(-100).to(at::kFloat);
    // Gradients through softened distributions are proportional to 1 / t^2, hence the factor t^2.
    return {cross_entropy(logits_NV, targets_N, 1),
            sum(sum(divergence_NV, {1}) * Variable(is_learned_N)) * (t * t)};
  }

  DistillConfig config_;
  std::unique_ptr<Model> teacher_;
};

}  // namespace

std::unique_ptr<Task> make_distill_task() { return std::make_unique<Distill>(); }

}  // namespace lathe
