#include <algorithm>
#include <cmath>
#include <iostream>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/memory.h"
#include "train/tasks/task.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

/// Exit::data where the data is not of the kind that the model was trained on.
void check_same_kind(const LoadedModel& m, const Task& task, const Data& data, const std::string& folder) {
  const DataFacts& facts = data.facts();
  if (task.name() != m.state.task || facts.outputs != m.state.sizes.outputs ||
      facts.input_sizes != m.state.sizes.input) {
    fail(Exit::data, folder, " is not made as the data that the run was trained on: ", facts.task, ", inputs of ",
         describe(at::IntArrayRef(facts.input_sizes)), " and ", facts.outputs, " outputs, and the run's are ",
         m.state.task, ", ", describe(at::IntArrayRef(m.state.sizes.input)), " and ", m.state.sizes.outputs);
  }
  check_tokenizer(folder, facts, m.state);
  const bool tokens = facts.outputs == 0;
  if (data.val_size() < (tokens ? 2 : 1)) {
    fail(Exit::data, folder, " has ", data.val_size(),
         tokens ? " validation tokens; a loss needs at least two"
                : " validation examples; there is nothing to evaluate");
  }
}

Exit run_eval(const Arguments& arguments) {
  const LoadedModel m = load_model_argument(arguments);
  DataConfig data_config = m.config.data;
  data_config.dir = arguments.get("data", m.config.data.dir);
  if (data_config.dir.empty())
    fail(Exit::usage, arguments.words[0], " was imported and has no data of its own; give some as --data FOLDER");
  const auto data = open_data(data_config);
  const Task& task = task_of({.config = m.config, .origins = {}}, data->facts());
  check_same_kind(m, task, *data, data_config.dir);
  const auto batch = static_cast<int64_t>(
      arguments.number("batch-size", static_cast<double>(m.config.train.batch_size), between(1, 1e6), true));
  BatchSizes sizes = batch_sizes(m.config);
  sizes.batch_size = batch;
  const int64_t units = batch * std::max<int64_t>(1, sizes.block_size);
  ProgressBar bar("evaluating", std::ceil(static_cast<double>(data->val_size()) / static_cast<double>(units)));
  double done = 0;
  const EvalResult r = *evaluate(task, *m.model, *data, sizes, 0, m.compute, m.device, [&] {
    bar.show(done++);
    return false;
  });
  clear_progress();
  const int64_t peak = m.device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  Json json = Json::object();
  for (const auto& [name, value] : r.metrics) json[name] = json_number(value);
  json.update({{task.unit(), r.targets},
               {"save_dtype", m.saved_dtype},
               {"load_dtype", m.load_dtype},
               {"compute_dtype", dtype_name(matmul_dtype(m.compute.dtype))},
               {"weight_bytes", m.weight_bytes},
               {"loading_peak_bytes", m.loading_peak_bytes},
               {"peak_bytes", peak},
               {"peak_rss_bytes", peak_rss_bytes()}});
  std::cout << json.dump() << std::endl;
  return Exit::done;
}

}  // namespace

Verb eval_verb() {
  return {"eval",
          "RUN|CHECKPOINT",
          "loss over the validation split; the last line is JSON",
          "eval runs/quickstart --load-dtype bf16",
          and_loading(
              {{"data", "data folder (default: the run's)"}, {"batch-size", "sequences at once (default: the run's)"}}),
          false,
          1,
          1,
          run_eval,
          {"double-quant"}};
}

}  // namespace lathe
