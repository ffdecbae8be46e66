#include "train/config/check_config.h"

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/io/text.h"
#include "optim/method.h"
#include "train/config/task_keys.h"
#include "train/config/transform.h"

namespace lathe {
namespace {

/// Returns the origin of the key that was given last. The order is file, environment, command line.
std::string last_origin(const LoadedConfig& loaded, const std::vector<std::string>& keys) {
  const auto rank = [&](const std::string& key) {
    const std::string origin = origin_of(loaded, key);
    return origin == "command line"       ? 3
           : origin.starts_with("LATHE_") ? 2
           : loaded.origins.contains(key) ? 1
                                          : 0;
  };
  std::string last = keys.at(0);
  for (const auto& key : keys) {
    if (rank(key) >= rank(last)) last = key;
  }
  return origin_of(loaded, last);
}

/// The checks of [amp]. Each check throws Exit::usage for a contradiction.
struct AmpChecks {
  const LoadedConfig& loaded;
  const RunConfig& c = loaded.config;
  const AmpConfig& a = c.amp;

  template <class... Why>
  void refuse(const std::string& key, const Why&... why) const {
    fail(Exit::usage, origin_of(loaded, key), ": ", why...);
  }
  /// Returns whether a key differs from its default. Keys at their defaults are never refused,
  /// because a saved config has all keys.
  bool given(const std::string& key) const {
    const Field& field = *c.schema().find(key);
    return c.schema().get(&c, field) != field.initial;
  }

  void check_dtypes() const {
    if (a.grad == "low" && a.dtype == "fp32")
      refuse("amp.grad", "amp.grad = \"low\" needs amp.dtype = \"bf16\", \"fp16\" or \"fp8\"");
    if (a.dtype != "fp16" && (a.scaler == "dynamic" || a.scaler == "fixed")) {
      refuse("amp.scaler", "amp.scaler = \"", a.scaler, "\" is for amp.dtype = \"fp16\"; ", a.dtype,
             a.dtype == "fp8" ? " scales each tensor" : " has float32's range",
             ", so leave amp.scaler out");
    }
  }
  void check_loss_scale() const {
    const bool scaled = a.dtype == "fp16" && a.scaler != "none",
               dynamic = scaled && a.scaler != "fixed";
    for (const char* key : {"amp.loss_scale", "amp.max_skips"}) {
      if (given(key) && !scaled)
        refuse(key, key, " has no effect: nothing is scaled with amp.dtype = \"", a.dtype,
               "\" and amp.scaler = \"", a.scaler, "\"; leave it out");
    }
    for (const char* key :
         {"amp.growth_factor", "amp.backoff_factor", "amp.growth_interval", "amp.min_loss_scale"}) {
      if (given(key) && !dynamic)
        refuse(key, key,
               " has no effect without a dynamic scaler (amp.dtype = \"fp16\", amp.scaler = "
               "\"dynamic\"); leave it out");
    }
    if (dynamic && a.min_loss_scale > a.loss_scale)
      refuse("amp.min_loss_scale", "amp.min_loss_scale = ", a.min_loss_scale,
             " is above amp.loss_scale = ", a.loss_scale);
  }
  /// Checks the keys of parameters and their copies.
  void check_parameters() const {
    if (!a.master && a.dtype == "fp32")
      refuse("amp.master", "amp.master = false needs amp.dtype = \"bf16\", \"fp16\" or \"fp8\"");
    const bool low = a.dtype != "fp32";
    if (given("amp.working_copies") && (!low || !a.master))
      refuse("amp.working_copies", "amp.working_copies has no effect ",
             low ? "with amp.master = false" : "in fp32", "; leave it out");
    if (given("amp.cache") && (!low || a.working_copies))
      refuse("amp.cache", "amp.cache has no effect ",
             low ? "with amp.working_copies = true" : "in fp32", "; leave it out");
    if (given("amp.rounding") && a.rounding != "auto" && a.master)
      refuse("amp.rounding", "amp.rounding has no effect with amp.master = true; leave it out");
    if (a.rounding == "stochastic" && a.dtype == "fp16")
      refuse("amp.rounding",
             "amp.rounding = \"stochastic\" is for bf16 parameters; use amp.dtype = \"bf16\" or "
             "amp.rounding = \"nearest\"");
  }
  void check_fp8_scaling() const {
    for (const char* key : {"amp.fp8_scaling", "amp.fp8_history", "amp.fp8_edge_blocks"}) {
      if (given(key) && a.dtype != "fp8")
        refuse(key, key, " has no effect without amp.dtype = \"fp8\"; leave it out");
    }
    if (given("amp.fp8_history") && a.fp8_scaling != "delayed")
      refuse("amp.fp8_history",
             "amp.fp8_history has no effect without amp.fp8_scaling = \"delayed\"; leave it out");
  }
};

/// Throws Exit::usage for contradictions in [amp].
void check_amp(const LoadedConfig& loaded) {
  const AmpChecks checks{loaded};
  checks.check_dtypes();
  checks.check_loss_scale();
  checks.check_parameters();
  checks.check_fp8_scaling();
}

/// Checks [model], the transforms of the model, and the keys of tasks.
void check_model(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const ModelKind& kind = *find_model_kind(c.model.kind);

  // A source of weights will replace the keys of [model], so contradictions among these keys are
  // not an error.
  if (const auto fault = has_source(c) ? std::nullopt : kind.check(c.model.own)) {
    std::vector<std::string> keys;
    for (const auto& key : fault->keys) keys.push_back("model." + key);
    fail(Exit::usage, last_origin(loaded, keys), ": ", fault->what);
  }

  if (const auto fault = has_source(c) ? std::nullopt : check_window(c))
    fail(Exit::usage, last_origin(loaded, fault->keys), ": ", fault->what);

  check_transforms(loaded, /*has_model=*/!has_source(c));

  for (const TaskKeys& t : task_keys()) {
    const auto fault = t.check ? t.check(c) : std::nullopt;
    if (fault) fail(Exit::usage, last_origin(loaded, fault->keys), ": ", fault->what);
  }
}

/// Checks [optim] and [schedule].
void check_optim(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto at = [&](const char* key) { return origin_of(loaded, key); };

  if (c.optim.nesterov && (c.optim.dampening != 0 || c.optim.momentum == 0)) {
    fail(Exit::usage, at("optim.nesterov"),
         ": optim.nesterov needs optim.dampening = 0 and optim.momentum > 0");
  }

  try {
    group_options(c.optim);
  } catch (const Error& e) {
    fail(Exit::usage, at("optim.groups"), ": ", e.what());
  }

  if (c.schedule.min_lr < 0 && c.schedule.min_lr != -1) {
    fail(Exit::usage, at("schedule.min_lr"), ": schedule.min_lr = ", c.schedule.min_lr,
         " is not allowed; it must be >= 0, or -1 for a tenth of optim.lr");
  }

  if (c.schedule.kind != "constant" && c.schedule.min_lr > c.optim.lr) {
    fail(Exit::usage, at("schedule.min_lr"), ": schedule.min_lr = ", c.schedule.min_lr,
         " is above optim.lr = ", c.optim.lr);
  }
}

/// Checks the number of steps, evaluations, folds and processes.
void check_run(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto at = [&](const char* key) { return origin_of(loaded, key); };

  if (c.train.steps > std::numeric_limits<int64_t>::max() / 2 / units_of_step(c)) {
    const int64_t window = batch_sizes(c).block_size;
    fail(Exit::usage, at("train.steps"), ": train.steps = ", c.train.steps,
         " times train.grad_accum = ", c.train.grad_accum,
         window > 0 ? str(", train.batch_size = ", c.train.batch_size, " and ", window_key(c),
                          " = ", window)
                    : str(" and train.batch_size = ", c.train.batch_size),
         " are more ", window > 0 ? "tokens" : "samples",
         " than can be counted; lower train.steps");
  }

  if (c.train.early_stop > 0 && c.train.eval_interval == 0) {
    fail(Exit::usage, at("train.early_stop"),
         ": train.early_stop counts evaluations, but train.eval_interval is 0; set "
         "train.eval_interval or leave train.early_stop out");
  }

  if (c.data.fold > 0 && c.data.fold >= c.data.folds) {
    fail(Exit::usage, at("data.fold"), ": data.fold = ", c.data.fold,
         " is not below data.folds = ", c.data.folds,
         c.data.folds == 0 ? "; set data.folds" : "; folds are counted from 0");
  }

  if (c.data.folds == 1)
    fail(Exit::usage, at("data.folds"),
         ": data.folds = 1 leaves nothing to train on; set 2 or more, or 0 for the split as "
         "prepared");

  if (c.dist.shard == "parameters" && c.memory.recompute != "blocks" &&
      c.memory.recompute != "selective") {
    fail(Exit::usage, at("dist.shard"),
         ": dist.shard = \"parameters\" frees a block's parameters between its forward and its "
         "backward pass, which needs memory.recompute = \"blocks\" or \"selective\"; set one of "
         "them, or dist.shard = \"gradients\"");
  }
}

/// Checks memory.budget, which chooses memory.recompute.
void check_budget(const LoadedConfig& loaded) {
  const MemoryConfig& memory = loaded.config.memory;
  if (memory.budget.empty()) return;
  parse_bytes(memory.budget, origin_of(loaded, "memory.budget") + ": memory.budget");
  if (memory.recompute == "none") return;
  fail(Exit::usage, last_origin(loaded, {"memory.budget", "memory.recompute"}),
       ": memory.budget chooses memory.recompute itself; leave one of them out");
}

/// Checks memory.saved, which packs the activations that blocks save.
void check_saved(const LoadedConfig& loaded) {
  const MemoryConfig& memory = loaded.config.memory;
  if (memory.saved == "none") return;
  const std::string& policy = memory.recompute;
  if (policy == "blocks" || policy == "selective" || policy == "sqrt") {
    fail(Exit::usage, last_origin(loaded, {"memory.saved", "memory.recompute"}),
         ": memory.saved packs the tensors that the ops of blocks keep, but memory.recompute = \"",
         policy,
         "\" recomputes all blocks; leave one of them out, or recompute a range of the blocks, as "
         "\"blocks.0-3\"");
  }
  if (!memory.budget.empty()) {
    fail(Exit::usage, last_origin(loaded, {"memory.saved", "memory.budget"}),
         ": memory.budget recomputes blocks, whose activations memory.saved would pack; leave one "
         "of them out");
  }
}

/// Checks memory.update_in_backward, which can't be combined with keys that need all gradients at
/// the same time.
void check_update_in_backward(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  if (!c.memory.update_in_backward) return;
  const auto refuse = [&](const char* key, const auto&... why) {
    fail(Exit::usage, last_origin(loaded, {"memory.update_in_backward", key}),
         ": memory.update_in_backward frees each gradient before the next one is complete, ",
         why...);
  };

  if (c.amp.dtype == "fp16" && c.amp.scaler != "none")
    refuse("amp.dtype",
           "and a loss scale skips a step if any gradient is not finite; use amp.dtype "
           "= \"bf16\", or leave memory.update_in_backward out");
  if (c.train.spike_sigma > 0)
    refuse("train.spike_sigma",
           "and updates its parameter before train.spike_sigma can decide to skip the step; leave "
           "one of the keys out");
  if (c.log.layers > 0)
    refuse("log.layers", "and log.layers = ", c.log.layers,
           " needs all gradients; leave one of the keys out");
  if (c.log.histograms > 0)
    refuse("log.histograms", "and log.histograms = ", c.log.histograms,
           " needs all gradients; leave one of the keys out");
  if (c.dist.shard != "none")
    refuse("dist.shard", "and dist.shard = \"", c.dist.shard,
           "\" exchanges all gradients after the backward pass; leave one of the keys out");
}

}  // namespace

bool is_offload(const std::string& names) {
  std::set<std::string> known{"optimizer", "activations", "parameters"};
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, '+');) {
    if (known.erase(name) == 0) return false;
  }
  return !names.empty() && names.back() != '+';
}

namespace {

/// Checks memory.offload.
void check_offload(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  if (!c.memory.offloads("activations") &&
      c.memory.offload_window_mb != MemoryConfig().offload_window_mb) {
    fail(Exit::usage, origin_of(loaded, "memory.offload_window_mb"),
         ": memory.offload_window_mb has no effect with memory.offload = \"", c.memory.offload,
         "\"; leave it out, or set memory.offload = \"activations\"");
  }
  if (c.memory.offload == "none") {
    if (c.memory.offload_dir.empty()) return;
    fail(Exit::usage, origin_of(loaded, "memory.offload_dir"),
         ": memory.offload_dir has no effect with memory.offload = \"none\"; leave it out, or set "
         "memory.offload = \"optimizer\"");
  }

  if (c.memory.offloads("activations") && c.memory.saved != "none") {
    fail(Exit::usage, last_origin(loaded, {"memory.offload", "memory.saved"}),
         ": memory.saved packs activations, which memory.offload writes to the disk as they are; "
         "leave one of them out");
  }
  if (c.memory.offloads("parameters") && !c.memory.budget.empty()) {
    fail(Exit::usage, last_origin(loaded, {"memory.offload", "memory.budget"}),
         ": memory.budget chooses memory.recompute itself, but memory.offload = \"",
         c.memory.offload, "\" needs \"blocks\" or \"selective\"; leave one of them out");
  }
  const bool recomputes = c.memory.recompute == "blocks" || c.memory.recompute == "selective";
  if (c.memory.offloads("parameters") && !(recomputes && c.memory.update_in_backward)) {
    fail(Exit::usage,
         last_origin(loaded, {"memory.offload",
                              recomputes ? "memory.update_in_backward" : "memory.recompute"}),
         ": memory.offload = \"", c.memory.offload,
         "\" releases the parameters of a block after its backward pass, which needs "
         "memory.recompute = \"blocks\" or \"selective\" and memory.update_in_backward = true; set "
         "them, or leave the parameters in memory");
  }
  if ((c.memory.offloads("optimizer") || c.memory.offloads("parameters")) &&
      c.checkpoint.async_save) {
    fail(Exit::usage, last_origin(loaded, {"memory.offload", "checkpoint.async_save"}),
         ": checkpoint.async_save may copy all state into memory, but memory.offload keeps state "
         "out of memory; leave one of them out");
  }
}

/// Checks [checkpoint], [log] and data.dir.
void check_files(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto at = [&](const char* key) { return origin_of(loaded, key); };

  if (c.checkpoint.async_save && c.checkpoint.interval == 0 && !c.checkpoint.keep_best) {
    fail(Exit::usage, at("checkpoint.async_save"),
         ": checkpoint.async_save has no effect with checkpoint.interval = 0; leave it out or give "
         "an interval");
  }

  if (c.log.histograms > 0 && !c.log.tensorboard) {
    fail(Exit::usage, at("log.histograms"),
         ": log.histograms has no effect without log.tensorboard = true; set log.tensorboard or "
         "leave log.histograms out");
  }

  if (c.data.dir.empty())
    fail(Exit::usage, at("data.dir"), ": data.dir is empty; set it to a data folder");
}

}  // namespace

void check_transforms(const LoadedConfig& loaded, bool has_model) {
  for (const Transform& t : transforms()) {
    if (!t.check || (t.checks_model && !has_model)) continue;
    if (const auto fault = t.check(loaded.config))
      fail(Exit::usage, last_origin(loaded, fault->keys), ": ", fault->what);
  }
}

bool has_source(const RunConfig& config) {
  const auto& adapters = config.transforms.at("adapters");
  const std::string* base = adapters.find<std::string>("base");
  return !config.train.init_from.empty() || (base != nullptr && !base->empty());
}

std::optional<ConfigFault> check_window(const RunConfig& c) {
  const int64_t window = c.data.window, context = model_context(c);
  if (window == 0 || window <= context) return std::nullopt;
  if (context == 0)
    return ConfigFault{{"data.window"},
                       str("data.window has no effect on model.kind = \"", c.model.kind,
                           "\", which has no context; leave data.window out")};
  return ConfigFault{{"data.window", "model.block_size"},
                     str("data.window = ", window, " is above model.block_size = ", context,
                         ", the model's context; lower data.window")};
}

namespace {

/// Warns about keys that differ from their defaults but have no effect with the config's kind of
/// optimizer, schedule and so on. These are not errors, because a sweep uses one config with
/// several kinds. An optimizer that a program adds may read any key, so it causes no warnings.
void warn_of_other_kinds(const RunConfig& c, std::vector<std::string>& all) {
  const auto& optimizers = optimizer_kinds();
  const bool is_added = std::any_of(optimizers.begin(), optimizers.end(), [&](const auto& kind) {
    return kind.name == c.optim.kind && kind.reads_any_key;
  });

  const Schema& schema = c.schema();
  for (const Field& field : schema.fields()) {
    const std::vector<std::string>& kinds = field.rule.kinds;
    if (kinds.empty() || (is_added && field.key.starts_with("optim."))) continue;

    const std::string section = field.key.substr(0, field.key.find('.') + 1);
    const Field* selector = schema.find(section + field.rule.selector);
    LATHE_CHECK(selector != nullptr, field.key, " depends on ", section, field.rule.selector,
                ", which is not a key");
    const auto kind = std::get<std::string>(schema.get(&c, *selector));
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    if (schema.get(&c, field) == field.initial) continue;

    std::string others;
    for (const std::string& one : kinds) others += (others.empty() ? "" : " or ") + one;
    all.push_back(str(field.key, " has no effect with ", selector->key, " = \"", kind,
                      "\"; it is a key of ", others));
  }
}

}  // namespace

std::vector<std::string> config_warnings(const RunConfig& c) {
  std::vector<std::string> all;
  warn_of_other_kinds(c, all);
  if (c.checkpoint.keep_best && c.train.eval_interval == 0)
    all.push_back(
        "checkpoint.keep_best has no effect with train.eval_interval = 0, since nothing "
        "is evaluated; set train.eval_interval");
  const ScheduleConfig initial;
  if (c.schedule.kind == "one_cycle" && c.schedule.warmup_steps != initial.warmup_steps)
    all.emplace_back(
        "schedule.warmup_steps has no effect with schedule.kind = \"one_cycle\", which rises over "
        "schedule.rise_share of the run");
  // If the key is not set, the loaded config has the value that follows from optim.lr.
  if (c.schedule.kind == "constant" && c.schedule.min_lr != initial.min_lr &&
      c.schedule.min_lr != end_of_schedule(initial, c.optim.lr))
    all.emplace_back("schedule.min_lr has no effect with schedule.kind = \"constant\"");
  if (c.schedule.kind != "one_cycle" && c.schedule.warmup_steps >= c.train.steps) {
    all.push_back(
        str("schedule.warmup_steps = ", c.schedule.warmup_steps,
            " is not below train.steps = ", c.train.steps,
            ", so the learning rate never reaches optim.lr; lower schedule.warmup_steps"));
  }
  return all;
}

void check_config(const LoadedConfig& loaded) {
  check_model(loaded);
  check_optim(loaded);
  check_run(loaded);
  check_budget(loaded);
  check_saved(loaded);
  check_update_in_backward(loaded);
  check_offload(loaded);
  check_files(loaded);
  check_amp(loaded);
}

}  // namespace lathe
