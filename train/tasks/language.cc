// Implements the task "language", next-token language modeling.
#include "train/tasks/language.h"

#include "autograd/ops/shapes.h"
#include "nn/layers/documents.h"
#include "train/tasks/generate.h"

namespace lathe {

Variable token_loss(const Model& model, const Batch& batch, double divisor) {
  const SeparateDocuments documents(batch.starts);
  if (model.has_head()) return head_loss(model, batch.inputs, batch.targets, divisor);
  const Variable logits = model(batch.inputs);
  return cross_entropy(reshape(logits, {-1, logits.sizes().back()}), batch.targets.reshape({-1}),
                       divisor);
}

Variable row_losses(const Model& model, const Batch& batch) {
  const bool has_head = model.has_head();
  const double softcap = model.logit_softcap();
  const Variable x_BTC = has_head ? model.features(batch.inputs) : model(batch.inputs);
  const std::vector<Variable> rows = unbind(x_BTC);
  std::vector<Variable> losses;
  for (size_t b = 0; b < rows.size(); ++b) {
    const at::Tensor targets = batch.targets[static_cast<int64_t>(b)];
    losses.push_back(has_head
                         ? head_cross_entropy(rows[b], model.head_weight(), softcap, targets, 1)
                         : cross_entropy(rows[b], targets, 1));
  }
  return stack(losses);
}

void check_no_pairs(const LoadedConfig& loaded, const Data& data) {
  if (!data.facts().pairs) return;
  fail(Exit::data, loaded.config.data.dir,
       " holds preferences, for the task dpo; leave train.task out");
}

ModelSizes TokenTask::fit(const LoadedConfig& loaded, const Data& data) const {
  const RunConfig& c = loaded.config;

  if (data.facts().outputs > 0)
    fail(Exit::data, c.data.dir,
         " holds examples, not tokens; prepare text (`lathe prepare TEXT --out FOLDER`)");
  if (!find_model_kind(c.model.kind)->models_tokens()) {
    fail(Exit::usage, origin_of(loaded, "model.kind"), ": model.kind = \"", c.model.kind,
         "\" does not model tokens, which ", c.data.dir, " holds; use a kind such as gpt");
  }

  const int64_t vocab_size = batch_sizes(c).vocab_size, known = data.facts().vocab_size;
  if (vocab_size == 0) {
    fail(Exit::usage, origin_of(loaded, "model.vocab_size"), ": ", c.data.dir,
         " has no manifest.json, so model.vocab_size must be given");
  }
  if (vocab_size < known) {
    fail(Exit::usage, origin_of(loaded, "model.vocab_size"), ": model.vocab_size = ", vocab_size,
         " is smaller than the vocabulary of ", known, " tokens of ", c.data.dir,
         "; leave model.vocab_size out or raise it");
  }

  // An evaluation needs at least one token and the token after it.
  if (c.train.eval_interval > 0 && data.val_size() < 2) {
    fail(Exit::data, c.data.dir,
         " has no validation tokens; prepare the data with a larger --val, or set "
         "train.eval_interval = 0");
  }

  if (c.data.documents == "separate" && !find_model_kind(c.model.kind)->separates_documents) {
    fail(Exit::usage, origin_of(loaded, "data.documents"),
         ": data.documents = \"separate\" is not for model.kind = \"", c.model.kind,
         "\", which can't keep documents of a window apart; use gpt or llama, or set "
         "data.documents = \"joined\"");
  }

  data.check_windows(batch_sizes(c));
  return {};
}

std::string TokenTask::sample(const Model& model, const Data& data, const RunConfig& config,
                              Compute compute, at::Device device,
                              const std::function<bool()>& stop) const {
  const auto& tokenizer = data.facts().tokenizer;
  if (!tokenizer) return "";
  const GenerateOptions writing{
      .context = model_context(config), .tokens = 200, .compute = compute, .device = device};
  const auto texts =
      generate(model, {{0}}, writing, [&](const GeneratedToken&) { return !stop(); });
  return tokenizer->decode(texts[0]);
}

namespace {

class Language final : public TokenTask {
 public:
  std::string name() const override { return "language"; }

  ModelSizes fit(const LoadedConfig& loaded, const Data& data) const override {
    check_no_pairs(loaded, data);
    return TokenTask::fit(loaded, data);
  }

  bool sums_over_positions() const override { return true; }

  Variable loss(const Model& model, const Batch& batch, double divisor) const override {
    return token_loss(model, batch, divisor);
  }

  void score(const Model& model, const Batch& batch, const DatasetInfo&,
             Scores& scores) const override {
    const double loss = token_loss(model, batch, 1).item();
    const int64_t targets = count_targets(batch);
    scores.sums["loss"] += loss;
    scores.targets += targets;
    if (batch.source.empty()) return;
    scores.sums["loss of " + batch.source] += loss;
    scores.sums["targets of " + batch.source] += static_cast<double>(targets);
  }

  std::vector<Metric> metrics(const Scores& scores) const override {
    std::vector<Metric> all{
        {"val_loss", scores.sums.at("loss") / static_cast<double>(scores.targets)}};
    const std::string losses = "loss of ";
    for (const auto& [name, loss] : scores.sums) {
      if (!name.starts_with(losses)) continue;
      const std::string source = name.substr(losses.size());
      const double targets = scores.sums.at("targets of " + source);
      // The sampled windows of a source may contain only masked targets.
      if (targets > 0) all.emplace_back("val_loss_" + source, loss / targets);
    }
    return all;
  }
};

}  // namespace

std::unique_ptr<Task> make_language_task() { return std::make_unique<Language>(); }

}  // namespace lathe
