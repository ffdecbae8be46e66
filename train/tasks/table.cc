// Defines the table of tasks, and the functions that tasks share.
#include <bit>

#include "autograd/pipeline_stage.h"
#include "core/io/json.h"
#include "core/memory.h"
#include "core/mode.h"
#include "dist/world.h"
#include "nn/module.h"
#include "train/tasks/task.h"

namespace lathe {

std::unique_ptr<Task> make_language_task();
std::unique_ptr<Task> make_classification_task();
std::unique_ptr<Task> make_regression_task();
std::unique_ptr<Task> make_dpo_task();
std::unique_ptr<Task> make_distill_task();

namespace {

std::vector<std::unique_ptr<Task>>& task_table() {
  static std::vector<std::unique_ptr<Task>> tasks = [] {
    // The table may be created while the schema of a run's config is being recorded. The config
    // fields of the tasks must not be added to that schema.
    const SchemaRecorder::Pause apart;
    std::vector<std::unique_ptr<Task>> all;
    all.push_back(make_language_task());
    all.push_back(make_classification_task());
    all.push_back(make_regression_task());
    all.push_back(make_dpo_task());
    all.push_back(make_distill_task());
    return all;
  }();
  return tasks;
}

}  // namespace

std::vector<TaskKeys> task_keys() {
  std::vector<TaskKeys> all;
  for (const auto& task : task_table()) {
    if (auto keys = task->keys()) all.push_back(std::move(*keys));
  }
  return all;
}

void check_task_keys(const LoadedConfig& loaded, const Task& task) {
  const Schema& schema = loaded.config.schema();
  for (const TaskKeys& other : task_keys()) {
    if (other.name == task.name()) continue;
    for (const Field& own : other.config.schema().fields()) {
      const std::string key = other.name + "." + own.key;
      if (schema.get(&loaded.config, *schema.find(key)) == own.initial) continue;
      fail(Exit::usage, origin_of(loaded, key), ": ", key, " has no effect with the task ",
           task.name(), "; leave the key out, or set train.task = \"", other.name, "\"");
    }
  }
}

const Task* find_task(const std::string& name) {
  for (const auto& task : task_table()) {
    if (task->name() == name) return task.get();
  }
  return nullptr;
}

void add_task(std::unique_ptr<Task> task) {
  LATHE_CHECK(find_task(task->name()) == nullptr && task->name() != "auto", "there is a task ",
              task->name(), " already; give your task another name");
  task_table().push_back(std::move(task));
}

const Task& task_of(const LoadedConfig& loaded, const DatasetInfo& facts) {
  const std::string& asked = loaded.config.train.task;
  const Task* task = find_task(asked == "auto" ? facts.task : asked);
  if (task != nullptr) return *task;
  std::string names = "auto";
  for (const auto& known : task_table()) names += " | " + known->name();
  if (asked == "auto")
    fail(Exit::data, loaded.config.data.dir, " is made for the task \"", facts.task,
         "\"; set train.task to one of ", names);
  fail(Exit::usage, origin_of(loaded, "train.task"), ": train.task = \"", asked,
       "\" is not allowed; it must be ", names);
}

ModelSizes fit_examples(const LoadedConfig& loaded, const Data& data, const Task& task) {
  const RunConfig& c = loaded.config;
  const DatasetInfo& facts = data.facts();
  if (facts.outputs == 0) {
    fail(Exit::data, c.data.dir, " holds tokens, which the task ", task.name(),
         " can't learn from; prepare examples (`lathe prepare FILE.csv --out FOLDER`)");
  }
  if (find_model_kind(c.model.kind)->models_tokens()) {
    fail(Exit::usage, origin_of(loaded, "model.kind"), ": model.kind = \"", c.model.kind,
         "\" models tokens, but ", c.data.dir, " holds examples; use a kind such as mlp");
  }
  if (data.train_size() == 0) fail(Exit::data, c.data.dir, " has no training examples");
  if (c.train.eval_interval > 0 && data.val_size() == 0) {
    fail(
        Exit::data, c.data.dir,
        " has no validation examples; prepare the data with a larger --val, set data.folds, or set "
        "train.eval_interval = 0");
  }
  const ModelSizes sizes = task.sizes(facts);
  try {
    const MetaInit guard;
    find_model_kind(c.model.kind)->make(c.model.own, sizes);
  } catch (const Error& e) {
    if (e.code() != Exit::internal) throw;
    fail(Exit::data, c.data.dir, " does not fit model.kind = \"", c.model.kind, "\": ", e.what(),
         "; prepare the data with --shape, or use another kind, such as mlp");
  }
  return sizes;
}

std::optional<Batch> first_examples(const Data& data, at::Device device) {
  Batch batch;
  if (data.val_size() == 0 || !data.evaluation({.batch_size = 5}, 1, device)->next(batch))
    return std::nullopt;
  return batch;
}

namespace {

/// Returns the scores of each batch as text, which represents the sums bit for bit.
std::string text_of(const std::vector<Scores>& scores) {
  Json all = Json::array();
  for (const Scores& one : scores) {
    Json sums = Json::object();
    for (const auto& [name, sum] : one.sums) sums[name] = std::bit_cast<int64_t>(sum);
    all.push_back({one.targets, sums});
  }
  return json_text(all, -1);
}

/// Returns the position of this process among the evaluators, and the number of evaluators.
/// Evaluators take turns at an evaluation's batches. Tensor ranks and the stages of a pipeline
/// score a batch together, so they form one evaluator.
RankAxis evaluators() {
  const int size = world().data().size;
  return {.rank = world().rank() / world().tensor().size % size, .size = size};
}

/// Returns the rank that has the scores of an evaluator: the evaluator's first tensor rank on the
/// last stage.
size_t rank_with_scores(int evaluator) {
  const int before = (world().pipeline().size - 1) * world().data().size;
  return static_cast<size_t>((before + evaluator) * world().tensor().size);
}

/// Adds a batch to the scores. A pipeline stage that is not the last only computes the input of the
/// next stage, and leaves the scores empty.
void score_batch(const Task& task, const Model& model, const Batch& batch, const DatasetInfo& facts,
                 Scores& scores) {
  PipelineStage* const stage = mode().stage;
  if (stage != nullptr) stage->begin_pass();
  try {
    task.score(model, batch, facts, scores);
  } catch (const PipelineStage::ForwardIsDone&) {
    scores = {};
    return;
  }
  if (stage != nullptr) stage->end_pass();
}

/// Returns the sum of the scores of all `batches` batches. `mine` are the scores of the batches
/// that this process scored. This call is a collective.
Scores sum_of_scores(const std::vector<Scores>& mine, int64_t batches) {
  std::vector<Json> of_ranks;
  for (const std::string& text : world().gather_texts(text_of(mine)))
    of_ranks.push_back(Json::parse(text));

  Scores total;
  for (int64_t n = 0; n < batches; ++n) {
    const int64_t size = evaluators().size;
    const size_t rank = rank_with_scores(static_cast<int>(n % size));
    const Json& one = of_ranks[rank][static_cast<size_t>(n / size)];
    total.targets += one[0].get<int64_t>();
    for (const auto& [name, bits] : one[1].items())
      total.sums[name] += std::bit_cast<double>(bits.get<int64_t>());
  }
  return total;
}

}  // namespace

std::optional<EvalResult> evaluate(const Task& task, const Model& model, const Data& data,
                                   const BatchSizes& sizes, int64_t batches, Compute compute,
                                   at::Device device, const std::function<bool()>& stop,
                                   bool detailed) {
  const NoGrad no_grad;
  const Autocast autocast(compute);
  const MemoryScope memory(Memory::activations);
  const auto windows = data.evaluation(sizes, batches, device);
  // Processes take turns at the batches. The sums are added batch by batch, so they are bitwise
  // equal on any number of processes.
  std::vector<Scores> mine;
  int64_t n = 0;
  Batch batch;
  for (; windows->next(batch); ++n) {
    const int64_t place = n % evaluators().size;
    if (place == 0 && stop && stop()) return std::nullopt;
    if (place != evaluators().rank) continue;
    mine.push_back({.detailed = detailed});
    score_batch(task, model, batch, data.facts(), mine.back());
  }
  // Forward passes may be collectives (ParameterShards), so processes that have no batch in the
  // last round score the last batch again.
  if (n % evaluators().size != 0 && n % evaluators().size <= evaluators().rank) {
    Scores unused;
    score_batch(task, model, batch, data.facts(), unused);
  }
  const Scores scores = sum_of_scores(mine, n);
  if (scores.targets == 0)
    fail(Exit::data,
         "the validation batches have no target; raise data.window (or model.block_size) if a "
         "window "
         "cuts off the answers of conversations, otherwise evaluate more batches "
         "(train.eval_batches) or use other data");
  return EvalResult{.metrics = task.metrics(scores),
                    .targets = scores.targets,
                    .details = detailed ? task.details(scores, data.facts()) : Json::object()};
}

}  // namespace lathe
