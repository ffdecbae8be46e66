// Defines the complete configuration of a run, the origins of its values, and functions that load
// and check it.
//
// amp.scaler and amp.loss_scale are separate keys, so that each key has one type and a
// contradiction between them can be reported. A saved config holds every key and must load again,
// so a key without effect is an error only if it differs from its default.
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

/// Keys of [model]: the kind of model, and the keys of that kind.
struct ModelConfig {
  LATHE_FIELD(std::string, kind, "gpt", "Kind of model. Each kind has its own keys.",
              anything().fixed())
  AnyConfig own = find_model_kind(kind)->config;  ///< keys of `kind`, in that kind's config struct
};

/// How a run trains, on which device, how long, and how often it logs, evaluates and samples.
struct TrainConfig {
  LATHE_FIELD(std::string, task, "auto",
              "Training task. auto: the task that the data was prepared for (language, "
              "classification, regression or dpo).",
              anything().fixed())
  LATHE_FIELD(int64_t, steps, 2000, "Number of optimizer steps.", at_least(1))
  LATHE_FIELD(int64_t, batch_size, 12,
              "Number of sequences or examples in a micro-batch. A pair of preferences counts as "
              "two sequences.",
              between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, grad_accum, 1,
              "Number of micro-batches whose gradients are added up in a step.",
              between(1, 1000000).fixed())
  LATHE_FIELD(std::string, sum_order, "tree",
              "Order in which the gradients of a step's micro-batches are added up. tree: in "
              "pairs, then in pairs of pairs, which gives the same bits on any number of processes "
              "and needs up to log2(grad_accum) - 1 more copies of the gradients; sequence: one "
              "after another, in one process only.",
              one_of({"tree", "sequence"}))
  LATHE_FIELD(std::string, fuse, "auto",
              "Whether consecutive elementwise ops, sums and means of rows, and softmax of a "
              "training step's forward pass run as one op, forward and backward "
              "(autograd/deferred.h). auto: on CPUs, for results of at least 16,384 elements, "
              "outside of recomputed blocks and unless memory.saved packs activations; the bits "
              "do not change, except those of second derivatives. off: never.",
              one_of({"auto", "off"}))
  LATHE_FIELD(int64_t, eval_interval, 250,
              "Number of steps between evaluations. The run is also evaluated before the first "
              "step and after the last. 0: no evaluations.",
              at_least(0))
  LATHE_FIELD(int64_t, eval_batches, 0,
              "Number of batches in an evaluation. They are spread evenly over the validation "
              "split and are the same each time. 0: the whole split.",
              at_least(0))
  LATHE_FIELD(int64_t, early_stop, 0,
              "Number of evaluations in a row without a lower validation loss after which the run "
              "ends. 0: the run trains all steps.",
              at_least(0))
  LATHE_FIELD(int64_t, log_interval, 10, "Number of steps between lines of metrics.jsonl.",
              at_least(1))
  LATHE_FIELD(int64_t, sample_interval, 0,
              "Number of steps between samples of generated text. 0: no samples.", at_least(0))
  LATHE_FIELD(int64_t, seed, 1337,
              "Seed of the initial weights, the order of the data and dropout.",
              at_least(0).fixed())
  LATHE_FIELD(double, spike_sigma, 0.0,
              "Skip a step whose loss is this many standard deviations above the running mean of "
              "the loss. The run counts skipped steps and writes their tokens to the folder "
              "spikes/ of the run. 0: never skip.",
              at_least(0))
  LATHE_FIELD(bool, detect_anomaly, false,
              "Check the results and gradients of every op, and end the run with exit code 5 and "
              "the name of the op and its module at the first value that is not finite. Slow. "
              "Gradients are not checked under a dynamic loss scale, which overflows on purpose.",
              anything())
  LATHE_FIELD(std::string, init_from, "",
              "Run, checkpoint or Hugging Face folder whose weights a new run starts from. All "
              "keys of [model] except dropout are taken from it. A resumed run reads it only for "
              "the task dpo, where it is the reference model. Empty: random weights.",
              anything().fixed())
  LATHE_FIELD(std::string, device, "auto",
              "Device. auto: cuda if a usable GPU is present, else cpu.",
              one_of({"auto", "cpu", "cuda"}))
  LATHE_FIELD(int64_t, threads, 0,
              "Number of CPU threads of each process. 0: OMP_NUM_THREADS, or else all cores, which "
              "the processes of a machine share. A run of one process keeps its number of threads "
              "when it resumes.",
              between(0, 4096))
  LATHE_FIELD(std::string, kernels, "auto",
              "CPU kernels. auto: Lathe's own where the processor has the instructions (`lathe "
              "config kernels`); aten: LibTorch's only.",
              one_of({"auto", "aten"}).fixed())
  LATHE_FIELD(std::string, out_dir, "",
              "Run folder. Empty: runs/NAME, where NAME is the name of the config file.",
              anything())
  LATHE_FIELD(int64_t, pause_at, 0,
              "Step after which the process writes a checkpoint and exits with code 75. The pause "
              "changes no bit of the run. 0: no pause.",
              at_least(0))
  LATHE_FIELD(double, max_time, 0.0,
              "Number of seconds after which the process writes a checkpoint and exits with code "
              "75. 0: no limit.",
              at_least(0))
};

/// Returns whether the text consists of names of memory.offload joined by +, each at most once.
bool is_offload(const std::string& names);

/// What a step keeps in memory, recomputes, or writes to disk.
struct MemoryConfig {
  LATHE_FIELD(
      std::string, recompute, "none",
      "What is kept of a model's blocks for the backward pass. none: everything. blocks: the input "
      "of each block. blocks.0-7: the input of each of the first eight blocks, and everything of "
      "the other blocks. selective: the input of each block, and the results of the matrix "
      "products, convolutions and attention with the most FLOPs per byte, up to 40% of what the "
      "blocks would keep. sqrt: the input of each group of about the square root of the number of "
      "blocks; a group is recomputed block by block. Everything else is computed again in the "
      "backward pass, with bitwise the same results: selective takes 1.1 to 1.2 times as long, "
      "blocks 1.2 to "
      "1.4 times, sqrt 1.6 to 1.8 times.",
      one_of({"none", "selective", "blocks", "sqrt"})
          .or_form("blocks.FIRST-LAST",
                   [](const std::string& s) { return recompute_policy(s).has_value(); }))
  LATHE_FIELD(std::string, budget, "",
              "Limit of the run's resident memory, for example \"4GB\". The run recomputes as few "
              "blocks as are needed to stay within the limit. With several processes, the limit "
              "applies to each process. Only on CPUs. "
              "Empty: memory.recompute decides.",
              anything())
  LATHE_FIELD(std::string, saved, "none",
              "Dtype in which ops keep activations for the backward pass. none: their own dtype; "
              "bf16; fp8: e4m3 with a scale for each row. Gradients are computed from the rounded "
              "values; the forward pass is not affected. Not rounded: parameters, data, "
              "statistics, tensors that losses keep, tensors that an op divides by or compares, "
              "and what is kept of blocks that memory.recompute recomputes.",
              one_of({"none", "bf16", "fp8"}))
  LATHE_FIELD(bool, update_in_backward, false,
              "Update each parameter during the backward pass as soon as its gradient is complete, "
              "and free the gradient. Changes no bit. With optim.grad_clip_by = \"norm\", each "
              "step runs forward and backward twice, first to compute the norm. Needs one "
              "micro-batch per process (train.grad_accum = the number of processes). Can't be "
              "combined with a loss scale.",
              anything())
  LATHE_FIELD(
      std::string, offload, "none",
      "What is kept in a scratch file on disk instead of in memory. optimizer: the optimizer "
      "state, which is read ahead and written behind while parameters are updated. activations: "
      "the tensors that the forward pass keeps for the backward pass (with memory.recompute, the "
      "inputs of blocks). parameters: the parameters, of which only those of one block at a time "
      "are in memory; needs memory.recompute and memory.update_in_backward. Several are joined by "
      "+, such as optimizer+parameters. Changes no bit. On a GPU, only activations are supported; "
      "they are kept in the memory of the host.",
      one_of({"none", "optimizer", "activations", "parameters"})
          .or_form("NAME+NAME", [](const std::string& s) { return is_offload(s); }))
  LATHE_FIELD(double, offload_window_mb, 128.0,
              "With memory.offload = \"activations\": megabytes of the newest activations that "
              "stay in memory; in the backward pass, as many megabytes are read ahead. At least "
              "three times the size of the largest activation stays in memory. Changes no bit.",
              between(0, 1e6))
  LATHE_FIELD(std::string, offload_dir, "",
              "Folder of the scratch file. The file has no name and is gone when the process ends. "
              "Empty: the run folder's disk.",
              anything())

  /// Returns whether memory.offload names "optimizer", "activations" or "parameters".
  bool offloads(std::string_view what) const { return offload.find(what) != std::string::npos; }
};

/// When checkpoints are written, and which are kept.
struct CheckpointConfig {
  LATHE_FIELD(
      int64_t, interval, 500,
      "Number of steps between checkpoints. 0: only at the end and when the run is stopped.",
      at_least(0))
  LATHE_FIELD(int64_t, keep, 2, "Number of newest checkpoints to keep.", at_least(1))
  LATHE_FIELD(int64_t, keep_every, 0,
              "Also keep the checkpoints of all steps that are multiples of this number. 0: none.",
              at_least(0))
  LATHE_FIELD(bool, keep_best, false,
              "Also keep the checkpoint with the lowest validation loss. Each evaluation with a "
              "new lowest loss writes a checkpoint.",
              anything())
  LATHE_FIELD(std::string, resume, "auto",
              "Where the run starts. auto: from the run folder's newest checkpoint, if there is "
              "one; never: from the beginning, and a run folder with checkpoints is an error; or "
              "the path of a checkpoint.",
              anything())
  LATHE_FIELD(
      std::string, dtype, "auto",
      "Dtype of the matrices in model.safetensors. auto: the dtype in memory. With any other "
      "dtype, optimizer.safetensors also holds the exact matrices.",
      one_of({"auto", "fp32", "bf16", "fp16"}))
  LATHE_FIELD(
      bool, async_save, false,
      "Write checkpoints in the background while training continues. Tensors that have not been "
      "written by the next update are copied in memory first. On GPUs, all tensors are copied "
      "immediately. The last checkpoint of a run is written synchronously.",
      anything())
};

/// What is logged, and where.
struct LogConfig {
  LATHE_FIELD(std::string, level, "info", "Lowest level of messages that the console shows.",
              one_of({"debug", "info", "warn", "error"}))
  LATHE_FIELD(bool, csv, false, "Also write metrics.csv and evaluations.csv to the run folder.",
              anything())
  LATHE_FIELD(bool, tensorboard, false,
              "Also write metrics, samples and histograms to the folder tensorboard/ of the run, "
              "for `tensorboard --logdir RUN`.",
              anything())
  LATHE_FIELD(int64_t, histograms, 0,
              "Number of steps between histograms of weights, gradients and layer outputs in "
              "tensorboard/. 0: no histograms.",
              at_least(0))
  LATHE_FIELD(
      int64_t, layers, 0,
      "Distance, in lines of metrics.jsonl, between two lines that have statistics of each layer. "
      "The statistics are norms of weights and gradients, the ratio of update to weight, the "
      "largest activation, and the share of units that were never active. 0: no statistics.",
      at_least(0))
};

/// The complete configuration of a run.
struct RunConfig {
  // Defined in run_config.cc. These functions are long, because there are many keys. If they were
  // inline, each source file would compile them again.
  RunConfig();
  RunConfig(const RunConfig&);
  RunConfig(RunConfig&&) noexcept;
  RunConfig& operator=(const RunConfig&);
  RunConfig& operator=(RunConfig&&) noexcept;
  ~RunConfig();

  LATHE_SECTION(ModelConfig, model, "the model")
  LATHE_SECTION(DataConfig, data, "training data")
  LATHE_SECTION(OptimConfig, optim, "the optimizer")
  LATHE_SECTION(ScheduleConfig, schedule, "the learning rate schedule")
  LATHE_SECTION(TrainConfig, train, "the run")
  LATHE_SECTION(AmpConfig, amp, "mixed precision")
  LATHE_SECTION(MemoryConfig, memory, "memory of a step")
  LATHE_SECTION(CheckpointConfig, checkpoint, "checkpoints and resuming")
  LATHE_SECTION(DistConfig, dist, "several processes")
  LATHE_SECTION(LogConfig, log, "console output and further metrics files")
  std::map<std::string, AnyConfig> transforms =
      transform_configs();  ///< configs of the transforms by name; each is a section of the config
  std::map<std::string, AnyConfig> tasks =
      task_configs();  ///< keys of the tasks by name; each is a section of the config

  /// Returns the keys of a run with a model of this kind, including the keys of transforms and
  /// tasks.
  static const Schema& schema(const std::string& kind);
  /// Returns the keys of this config.
  const Schema& schema() const { return schema(model.kind); }

 private:
  static std::map<std::string, AnyConfig> transform_configs();
  static std::map<std::string, AnyConfig> task_configs();
};
/// Returns the keys of all model kinds, each key once.
const std::vector<Field>& all_fields();
/// Returns the old names of keys that were renamed. load_config() refuses such a key with an error
/// that gives the new name. config_from_toml() accepts it, so that old checkpoints can be read.
std::vector<std::string> renamed_keys();
/// Returns the reference page of all keys in Markdown.
std::string config_reference();

/// A key that was given, its value, and the place where it was given.
struct GivenKey {
  std::string key;
  ConfigValue value;
  /// Whether the value is a text from the environment or the command line. Such a text is parsed
  /// with the type of the field.
  bool is_text;
  std::string where;
  /// Returns the value converted to the type of `field`. If `field` is null, returns the value as
  /// it was given.
  ConfigValue read_as(const Field* field) const;
};

/// A config, and the origin of each value that is not a default. The functions that complete a
/// config (resolve_sources(), apply_memory_budget(), RunData::open()) take a LoadedConfig, and
/// return the completed LoadedConfig, some of them as a member of their result.
struct LoadedConfig {
  RunConfig config;
  Origins origins;
  std::string path{};            ///< path of the config file, as given
  bool is_new_run = false;       ///< whether the checkpoints of train.out_dir are ignored
  std::filesystem::path base{};  ///< the checkpoint that adapters.base names, once
                                 ///< resolve_adapter_base has found it
  /// The checkpoint or Hugging Face folder that train.init_from names. resolve_init_from sets it,
  /// unless the run has adapters or a checkpoint of its own.
  std::filesystem::path source{};
  /// The checkpoint or Hugging Face folder of the frozen model that the task needs, once
  /// resolve_frozen has found it; empty in a dry run, which does not depend on weights.
  std::filesystem::path frozen{};
  /// Keys of [model] of the frozen model, once it is found.
  std::optional<ModelConfig> frozen_model{};
  /// Keys of [model] that were given, except model.kind.
  std::vector<GivenKey> model_keys{};
};

/// Returns the sizes of a micro-batch. A window has data.window tokens or, if data.window is 0, as
/// many as the context of the model. Sizes that the model kind does not have are 0.
BatchSizes batch_sizes(const RunConfig& config);
/// Returns the context length of the model in tokens (model.block_size). Returns 0 for kinds
/// without a context.
int64_t model_context(const RunConfig& config);
/// Returns the name of the key that determines the length of a window.
const char* window_key(const RunConfig& config);
/// Returns the contradiction between data.window and the context of the model. Returns nullopt if
/// there is none.
std::optional<ConfigFault> check_window(const RunConfig& config);
/// Returns the number of tokens in a micro-batch. If the model has no context, returns the number
/// of samples.
int64_t units_of_micro_batch(const RunConfig& config);
/// Returns the number of tokens or samples in an optimizer step, summed over its micro-batches.
int64_t units_of_step(const RunConfig& config);

/// Returns the origin of a key's value: a position in a file, an environment variable, or "command
/// line". If nothing set the key, returns "CONFIG, default of KEY".
std::string origin_of(const LoadedConfig& loaded, const std::string& key);

/// Returns the config with `from`, the model of a source of weights, as its [model]. Keeps the
/// config's dropout. `named_by` names the source in errors. Throws Exit::usage, with the origin of
/// the key, if a given key of [model] has another value in `from`, or if the source's kind has no
/// such key.
LoadedConfig adopt_model(LoadedConfig loaded, const ModelConfig& from, const std::string& named_by);

/// Returns a sentence for each combination of keys that is allowed but probably a mistake.
std::vector<std::string> config_warnings(const RunConfig& config);

/// Keys of a config and their values as texts, as on a command line.
using Overrides = std::vector<std::pair<std::string, std::string>>;

/// Loads a config. The file, the environment (LATHE_TRAIN_STEPS=100) and the command line
/// (`overrides`) set keys in this order, so the command line has the highest precedence. The
/// default of train.out_dir depends on `path`, and the default of schedule.min_lr depends on
/// optim.lr. Throws Exit::usage, with the origin of the key, for invalid values and for keys that
/// contradict each other.
LoadedConfig load_config(const std::string& path, const Overrides& overrides);

/// Returns the config of a saved run from `text`, the text in its checkpoint. Throws
/// Exit::checkpoint if the text is not valid.
RunConfig config_from_toml(const std::string& text, const std::string& where);

}  // namespace lathe
