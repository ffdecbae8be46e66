// The whole configuration of a run, where it comes from, and what must hold between its keys.
//
// amp.scaler and amp.loss_scale are two keys, so that each has one type and a contradiction is
// reported. A key without effect is an error if it differs from its default; a saved config,
// which holds every key, therefore reads back.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "amp/amp.h"
#include "autograd/recompute.h"
#include "core/config.h"
#include "data/data.h"
#include "dist/config.h"
#include "nn/models/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace lathe {

/// Keys of [model]: the kind, and those of its own.
struct ModelConfig {
  LATHE_FIELD(std::string, kind, "gpt", "which model; each kind has keys of its own",
              anything().fixed())
  AnyConfig own = find_model_kind(kind)->config;  ///< of the kind's config type
};

/// How long and on what a run trains, and what it shows meanwhile.
struct TrainConfig {
  LATHE_FIELD(
      std::string, task, "auto",
      "what is learned; auto: what the data was made for (language, classification, regression, "
      "dpo)",
      anything().fixed())
  LATHE_FIELD(int64_t, steps, 2000, "optimizer steps of the run", at_least(1))
  LATHE_FIELD(int64_t, batch_size, 12,
              "sequences or examples in a micro-batch; a pair of preferences is two sequences",
              between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, grad_accum, 1, "micro-batches in a step", between(1, 1000000).fixed())
  LATHE_FIELD(
      std::string, sum_order, "tree",
      "how the gradients of a step's micro-batches are added up; tree: in pairs, then pairs "
      "of pairs, which gives the same bits on any number of processes and takes up to "
      "log2(grad_accum) - 1 more copies of the gradients; sequence: one after another, on "
      "one process only",
      one_of({"tree", "sequence"}))
  LATHE_FIELD(int64_t, eval_interval, 250,
              "steps between evaluations; 0: none. With it, one also before the first step and "
              "after the last",
              at_least(0))
  LATHE_FIELD(
      int64_t, eval_batches, 0,
      "batches of an evaluation, spread evenly over the validation split and the same each time; "
      "0: all of it",
      at_least(0))
  LATHE_FIELD(int64_t, early_stop, 0,
              "evaluations in a row without a lower validation loss after which the run ends; 0: "
              "it trains all steps",
              at_least(0))
  LATHE_FIELD(int64_t, log_interval, 10, "steps between lines of metrics.jsonl", at_least(1))
  LATHE_FIELD(int64_t, sample_interval, 0, "steps between samples that a person can read; 0: none",
              at_least(0))
  LATHE_FIELD(int64_t, seed, 1337, "of initial weights, order of data and dropout",
              at_least(0).fixed())
  LATHE_FIELD(double, spike_sigma, 0.0,
              "a step whose loss is this many standard deviations above the mean of late changes "
              "nothing, is counted, and "
              "leaves its tokens in the run folder's spikes/; 0: none",
              at_least(0))
  LATHE_FIELD(bool, detect_anomaly, false,
              "look at every op's results and gradients, and end the run (exit 5) at the first "
              "that makes a value which "
              "is not finite, by the op's and its module's name; slow. Under a dynamic loss scale, "
              "which overflows on "
              "purpose, gradients are not looked at",
              anything())
  LATHE_FIELD(std::string, init_from, "",
              "run, checkpoint or Hugging Face folder whose weights a new run starts from; gives "
              "the keys of [model], but "
              "for dropout. A resumed run does not need it. Empty: random weights",
              anything().fixed())
  LATHE_FIELD(std::string, device, "auto", "where to compute; auto: cuda where a GPU can be used",
              one_of({"auto", "cpu", "cuda"}))
  LATHE_FIELD(int64_t, threads, 0,
              "CPU threads; 0: OMP_NUM_THREADS, else all cores. A resumed run keeps its number",
              between(0, 4096))
  LATHE_FIELD(std::string, kernels, "auto",
              "of CPU runs; auto: Lathe's own where the machine has the instructions (`lathe "
              "config kernels`), aten: "
              "LibTorch's throughout",
              one_of({"auto", "aten"}).fixed())
  LATHE_FIELD(std::string, out_dir, "", "run folder; empty: runs/ and the config's name",
              anything())
  LATHE_FIELD(int64_t, pause_at, 0,
              "step after which this process writes a checkpoint and exits 75, as at max_time; 0: "
              "none. A run that is resumed after it has the bits of one without it",
              at_least(0))
  LATHE_FIELD(double, max_time, 0.0,
              "seconds after which this process writes a checkpoint and exits 75; 0: no limit",
              at_least(0))
};

/// What a step keeps in memory.
struct MemoryConfig {
  LATHE_FIELD(
      std::string, recompute, "none",
      "What is kept of a model's blocks for the backward pass. none: everything. blocks: the "
      "input of each block. blocks.0-7: everything, except of the first eight blocks, of which "
      "the input. selective: the input of each block, and the results of the matrix products, "
      "convolutions and attentions with the most FLOPs per byte, up to 40% of what the blocks "
      "would keep. sqrt: the input of each group of about the square root of the number of "
      "blocks; a group is recomputed block by block. The remainder is computed again, with the "
      "same bits: selective takes 1.1 to 1.2 times as long, blocks 1.2 to 1.4 times, sqrt 1.6 to "
      "1.8 times.",
      one_of({"none", "selective", "blocks", "sqrt"})
          .or_form("blocks.FIRST-LAST",
                   [](const std::string& s) { return recompute_policy(s).has_value(); }))
  LATHE_FIELD(
      std::string, budget, "",
      "Limit of the run's resident memory, for example \"4GB\". The run recomputes as little as "
      "it needs to stay within it. In one process on a CPU only. Empty: memory.recompute decides.",
      anything())
  LATHE_FIELD(
      std::string, saved, "none",
      "Dtype in which ops keep activations for the backward pass. none: their own dtype; bf16; "
      "fp8: e4m3 with a scale for each row. Gradients are computed from the rounded values, the "
      "loss is not. Not rounded: parameters, data, statistics, the tensors of losses and of ops "
      "that divide by them or compare them, and the blocks that memory.recompute concerns. On "
      "CPUs only.",
      one_of({"none", "bf16", "fp8"}))
  LATHE_FIELD(
      bool, update_in_backward, false,
      "update each parameter as soon as its gradient is complete, and free the gradient, so "
      "that gradients never exist at the same time; the same bits. With optim.grad_clip by "
      "norm, each step runs forward and backward twice, first for the norm. On CPUs, with "
      "train.grad_accum = 1, in one process, without a loss scale",
      anything())
};

/// When checkpoints are written, and which are kept.
struct CheckpointConfig {
  LATHE_FIELD(int64_t, interval, 500,
              "steps between checkpoints; 0: only at the end or when stopped", at_least(0))
  LATHE_FIELD(int64_t, keep, 2, "newest checkpoints that are kept", at_least(1))
  LATHE_FIELD(int64_t, keep_every, 0, "also keep checkpoints of steps that this divides; 0: none",
              at_least(0))
  LATHE_FIELD(bool, keep_best, false,
              "also keep the checkpoint with the lowest validation loss, and write one at each "
              "evaluation that is lower",
              anything())
  LATHE_FIELD(std::string, resume, "auto",
              "auto: resume from the run folder's newest checkpoint; never: refuse one that has "
              "any; or a checkpoint's path",
              anything())
  LATHE_FIELD(std::string, dtype, "auto",
              "dtype of the matrices in model.safetensors; auto: as they are in memory. Where it "
              "is another, "
              "optimizer.safetensors holds them exactly as well",
              one_of({"auto", "fp32", "bf16", "fp16"}))
  LATHE_FIELD(
      bool, async_save, false,
      "write checkpoints in the background: training stands still while they are copied, into as "
      "many bytes of "
      "memory, and continues while they are written. The last one of a run is written at once",
      anything())
};

/// What is logged, and where.
struct LogConfig {
  LATHE_FIELD(std::string, level, "info", "least level shown on the console",
              one_of({"debug", "info", "warn", "error"}))
  LATHE_FIELD(bool, csv, false, "also write metrics.csv and evaluations.csv into the run folder",
              anything())
  LATHE_FIELD(bool, tensorboard, false,
              "also write the run folder's tensorboard/, for `tensorboard --logdir RUN`: figures, "
              "samples, histograms",
              anything())
  LATHE_FIELD(int64_t, histograms, 0,
              "steps between histograms of weights, gradients and what layers return, in "
              "tensorboard/; 0: none",
              at_least(0))
  LATHE_FIELD(int64_t, layers, 0,
              "lines of metrics.jsonl between those that have figures of each layer: norms of "
              "weights and gradients, the "
              "update's size over the weights', the largest activation, the share of units that "
              "never fired; 0: none",
              at_least(0))
};

/// All of a run.
struct RunConfig {
  // In run_config.cc: of so many keys these are long, and inline each part of the build would
  // compile them again.
  RunConfig();
  RunConfig(const RunConfig&);
  RunConfig(RunConfig&&) noexcept;
  RunConfig& operator=(const RunConfig&);
  RunConfig& operator=(RunConfig&&) noexcept;
  ~RunConfig();

  LATHE_SECTION(ModelConfig, model, "the model")
  LATHE_SECTION(DataConfig, data, "training data")
  LATHE_SECTION(OptimConfig, optim, "the optimizer")
  LATHE_SECTION(ScheduleConfig, schedule, "the learning rate's course")
  LATHE_SECTION(TrainConfig, train, "the run")
  LATHE_SECTION(AmpConfig, amp, "mixed precision")
  LATHE_SECTION(MemoryConfig, memory, "memory of a step")
  LATHE_SECTION(CheckpointConfig, checkpoint, "checkpoints and resuming")
  LATHE_SECTION(DistConfig, dist, "several processes")
  LATHE_SECTION(LogConfig, log, "console and what a run writes beside metrics.jsonl")
  std::map<std::string, AnyConfig> transforms =
      transform_configs();  ///< by name; each is a section of the config
  std::map<std::string, AnyConfig> tasks =
      task_configs();  ///< keys of tasks, by name; each is a section of the config

  /// The keys of a model of that kind, transforms' included.
  static const Schema& schema(const std::string& kind);
  /// The keys of this config.
  const Schema& schema() const { return schema(model.kind); }

 private:
  static std::map<std::string, AnyConfig> transform_configs();
  static std::map<std::string, AnyConfig> task_configs();
};
/// Every key of every kind, once each.
const std::vector<Field>& all_fields();
/// Keys that builds of before had by another name; a config with one is refused by the new name.
std::vector<std::string> renamed_keys();
/// The reference page of all keys, Markdown.
std::string config_reference();

/// A key that was given, and where.
struct GivenKey {
  std::string key;
  ConfigValue value;
  bool is_text;  ///< of the environment or the command line, whose type depends on the field
  std::string where;
  /// Returns the value for a field; null: as it was given.
  ConfigValue read_as(const Field* field) const;
};

/// A config and where each value that is not a default came from.
struct LoadedConfig {
  RunConfig config;
  Origins origins;
  std::string path{};            ///< of the config file, as given
  std::filesystem::path base{};  ///< the checkpoint that adapters.base stands for, once
                                 ///< resolve_adapter_base has found it
  /// The checkpoint or Hugging Face folder that train.init_from stands for, once resolve_init_from
  /// has found it: where the run begins with it.
  std::filesystem::path source{};
  /// The checkpoint or Hugging Face folder of the frozen model that the task needs, once
  /// resolve_frozen has found it; empty in a dry run, which does not depend on weights.
  std::filesystem::path frozen{};
  std::optional<ModelConfig> frozen_model{};  ///< [model] of the frozen model, once it is found
  std::vector<GivenKey> model_keys{};         ///< keys of [model] that were given, but for the kind
};

/// Returns the size of a micro-batch, whose windows are data.window or the model's context. Sizes
/// that the model's kind does not have are 0.
BatchSizes batch_sizes(const RunConfig& config);
/// Returns the tokens that a model can see, model.block_size; 0 for kinds without it.
int64_t model_context(const RunConfig& config);
/// Returns the key that the length of a window comes from.
const char* window_key(const RunConfig& config);
/// Returns what is wrong with data.window for the config's model.
std::optional<ConfigFault> check_window(const RunConfig& config);
/// Tokens, or samples of a model that has none, of a micro-batch and of an optimizer step: its
/// targets, which the sum of its losses is divided by.
int64_t units_of_micro_batch(const RunConfig& config);
/// Tokens or samples of a step: batch x accumulation (x block size).
int64_t units_of_step(const RunConfig& config);

/// Where a key's value came from; "defaults" where nothing set it.
std::string origin_of(const LoadedConfig& loaded, const std::string& key);

/// Takes [model], but for dropout, from the source that `named_by` names. Throws Exit::usage, with
/// the place, for a key that was given and has another value there, or that its kind lacks.
void adopt_model(LoadedConfig& loaded, const ModelConfig& from, const std::string& named_by);

/// Returns a sentence for each pair of keys that are allowed together but hardly meant so.
std::vector<std::string> config_warnings(const RunConfig& config);

/// Keys of a config and their texts, as on a command line.
using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Defaults, which may follow other keys (train.out_dir, schedule.min_lr) < file < environment
/// (LATHE_TRAIN_STEPS=100) < command line (key, text). Checked key by key and against each other.
/// Errors are Exit::usage and say where.
LoadedConfig load_config(const std::string& path, const Overrides& overrides);

/// A saved run's config, as written in its checkpoint; what is wrong with it is Exit::checkpoint.
RunConfig config_from_toml(const std::string& text, const std::string& where);

}  // namespace lathe
