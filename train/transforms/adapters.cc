#include "train/transforms/adapters.h"

#include <algorithm>
#include <set>

#include "core/dtype.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "core/mode.h"
#include "nn/layers.h"
#include "train/transforms/frozen.h"
#include "train/transforms/tensor_parallel.h"

namespace lathe {

const AdaptersConfig& adapters_of(const RunConfig& config) {
  return config.transforms.at("adapters").as<AdaptersConfig>();
}

namespace {

/// Splits a comma-separated list.
std::vector<std::string> patterns_of(const std::string& list) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    all.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

/// Returns the layers that get adapters: the layers that the patterns match. If there are no
/// patterns, returns the layers of the blocks, or all layers if there are no blocks. A head whose
/// weight the loss uses directly gets no adapter, since the adapter would never run. Throws
/// Exit::usage if a pattern matches no layer.
std::vector<Linear*> adapted_layers(Model& model, const std::string& patterns) {
  const at::Tensor head = model.has_head() ? model.head_weight().data() : at::Tensor();
  std::vector<Linear*> all, in_blocks;
  std::vector<std::string> paths;
  for_each_module<Linear>(model, [&](const std::string& path, int64_t block, Linear& layer) {
    if (!layer.weight.defined() || layer.weight.data().is_same(head)) return;
    all.push_back(&layer);
    paths.push_back(path);
    if (block >= 0) in_blocks.push_back(&layer);
  });
  if (patterns.empty()) return in_blocks.empty() ? all : in_blocks;

  std::set<size_t> chosen;
  for (const std::string& pattern : patterns_of(patterns)) {
    bool is_used = false;
    for (size_t i = 0; i < paths.size(); ++i) {
      if (!matches(pattern, paths[i])) continue;
      chosen.insert(i);
      is_used = true;
    }
    if (is_used) continue;
    std::string there;
    for (size_t i = 0; i < std::min<size_t>(paths.size(), 8); ++i)
      there += (i > 0 ? ", " : "") + paths[i];
    fail(Exit::usage, "adapters.layers: \"", printable_line(pattern),
         "\" matches no linear layer of the model; its layers are ", there,
         paths.size() > 8 ? ", ..." : "");
  }
  std::vector<Linear*> found;
  for (const size_t i : chosen) found.push_back(all[i]);
  return found;
}

std::string no_layer_text(const RunConfig& config) {
  return str(
      "adapters.rank = ", adapters_of(config).rank,
      " has no effect: adapters are added to linear layers, but model.kind = \"", config.model.kind,
      "\" has no linear layer other than its head; leave [adapters] out to train the complete "
      "model");
}

/// Returns whether a model of the config has no layer for adapters; false if this is unknown.
bool has_no_layer(const ModelConfig& config) {
  const std::unique_ptr<Model> model = shapes_of(config);
  return model && adapted_layers(*model, "").empty();
}

/// Resets the fields of a state that describe the training of the adapters and the unmerged model.
void reset_training_state(RunState& state) {
  state.metrics_bytes = 0;
  state.sink_bytes.clear();
  state.eval_due = state.sample_due = false;
  state.val_loss.reset();
  state.best_val_loss.reset();  // the best loss belongs to the unmerged model
  state.val_step = state.best_step = -1;
  state.evaluations_since_best = 0;
  state.scaler.reset();
  state.spikes.reset();
  state.branched_from.clear();
  state.branched_id.clear();
  state.config_path.clear();
  state.changes.clear();
  state.base_hash.clear();
}

/// Copies a run without adapters, whose checkpoint is divided among the files of several processes,
/// to a run whose checkpoint has complete tensors.
fs::path merge_files(const fs::path& run, const fs::path& checkpoint, RunState state,
                     const fs::path& out, bool average, const StopAsked& stop) {
  if (tensor_file_names(checkpoint, CheckpointPart::model).size() == 1)
    fail(Exit::usage, run.string(),
         " has nothing to merge: its adapters.rank is 0, and one process wrote its checkpoint");
  if (average) {
    fail(Exit::usage, "command line: --weights ema is for adapters, which ", run.string(),
         " does not have; leave --weights out");
  }

  NewFolder merged(out, stop);
  install_allocator();
  state.metrics_bytes = 0;
  state.sink_bytes.clear();
  const fs::path written =
      copy_complete(checkpoint, merged.path(), state, [&] { merged.check_stop(); });
  merged.publish();
  return out / "checkpoints" / written.filename();
}

}  // namespace

void add_adapters(Model& model, const TransformContext& context) {
  const AdaptersConfig& c = adapters_of(context.config);
  if (c.rank == 0) return;
  const MemoryScope memory(Memory::parameters);
  const auto options = at::TensorOptions(context.device).dtype(context.matrices);
  const auto layers = adapted_layers(model, c.layers);
  if (layers.empty()) fail(Exit::usage, no_layer_text(context.config));
  for (Linear* layer : layers) layer->add_adapter(c.rank, c.alpha, options);
  auto added = trained_parameters(model);
  std::erase_if(added, [](const NamedParameter& p) { return !p.role.adapter; });
  initialize(added, context.config.model.own, static_cast<uint64_t>(context.config.train.seed));
  if (!c.dora) return;
  for (Linear* layer : layers) layer->add_magnitudes();
}

std::optional<ConfigFault> check_adapters(const RunConfig& config) {
  const AdaptersConfig& c = adapters_of(config);
  const auto fault = [](const std::string& key, const auto&... what) {
    return ConfigFault{{key}, str(what...)};
  };

  // If another key is set, the user probably forgot the rank.
  if (c.rank == 0) {
    const AnyConfig& own = config.transforms.at("adapters");
    for (const Field& f : own.schema().fields()) {
      if (own.schema().get(&c, f) != f.initial)
        return fault("adapters." + f.key, "adapters.", f.key,
                     " has no effect with adapters.rank = 0; leave it out or give a rank");
    }
    return std::nullopt;
  }

  if (c.dora && config.dist.shard == "parameters") {
    return ConfigFault{{"adapters.dora", "dist.shard"},
                       "adapters.dora needs the complete adapters of a layer, which dist.shard = "
                       "\"parameters\" frees in low precision; set dist.shard = \"gradients\""};
  }

  // If the run has adapters, resolve_init_from() sets adapters.base to train.init_from.
  const std::string& source = config.train.init_from;
  if (c.base.empty() && source.empty())
    return fault("adapters.rank",
                 "adapters.rank needs adapters.base, the run that the adapters are trained on");
  if (!c.base.empty() && !source.empty() && c.base != source) {
    return fault("train.init_from", "train.init_from = \"", source,
                 "\" has no effect together with adapters.base = \"", c.base,
                 "\", whose weights the adapters are trained on; leave train.init_from out");
  }

  if (c.double_quant && c.dtype != "nf4")
    return fault("adapters.double_quant", "adapters.double_quant needs adapters.dtype = \"nf4\"");
  if (config.amp.dtype == "fp8")
    return fault("amp.dtype", "amp.dtype = \"fp8\" can't be used with adapters; use \"bf16\"");

  const bool quantized = c.dtype == "int8" || c.dtype == "nf4";
  if (quantized ? config.amp.dtype == "fp32" : c.dtype != config.amp.dtype) {
    return fault("adapters.dtype", "adapters.dtype = \"", c.dtype, "\" needs amp.dtype = \"",
                 quantized ? "bf16\" or \"fp16" : c.dtype, "\", but amp.dtype is \"",
                 config.amp.dtype, "\"");
  }

  if (has_no_layer(config.model))
    return ConfigFault{{"adapters.rank", "model.kind"}, no_layer_text(config)};
  return std::nullopt;
}

fs::path find_base(const RunConfig& config) {
  try {
    return find_checkpoint(adapters_of(config).base);
  } catch (const Error& e) {
    fail(e.code(), "adapters.base: ", e.what());
  }
}

LoadedConfig resolve_adapter_base(LoadedConfig loaded) {
  const RunConfig& c = loaded.config;
  if (adapters_of(c).rank == 0) return loaded;
  const std::string name = adapters_of(c).base;
  const fs::path base = loaded.base = find_base(c);
  const RunConfig from = saved_config(read_state(base), base);
  if (adapters_of(from).rank > 0) {
    fail(Exit::usage, origin_of(loaded, "adapters.base"), ": ", name,
         " holds adapters; merge them into their base first (`lathe merge`)");
  }
  return adopt_model(std::move(loaded), from.model, "adapters.base");
}

std::unique_ptr<Model> load_base(const fs::path& base, const RunConfig& config,
                                 const ModelSizes& sizes, at::Device device) {
  const AdaptersConfig& c = adapters_of(config);
  // Each tensor rank reads only its part of the base.
  const auto cut = [&](Model& shapes) {
    cut_for_tensor_ranks(shapes, {.config = config, .device = device, .matrices = at::kFloat});
  };
  return load_frozen(base, config, sizes,
                     {.dtype = c.dtype,
                      .double_quant = c.double_quant,
                      .other_dtype = matmul_dtype(compute_dtype(config.amp))},
                     device, cut);
}

std::string base_hash(const fs::path& base) { return base.empty() ? "" : model_id(base); }

void check_base(const fs::path& base, const RunConfig& config, const std::string& hash) {
  if (const std::string now = base_hash(base); now != hash) {
    fail(Exit::checkpoint, "adapters.base = ", adapters_of(config).base,
         " is not the model that the adapters were trained on (checksum ", now, " instead of ",
         hash,
         "); if that model was trained further, name the earlier checkpoint instead of the model's "
         "run");
  }
}

void check_base_tokenizer(const LoadedConfig& loaded, const Data& data) {
  if (!loaded.base.empty())
    check_tokenizer(loaded.config.data.dir, data.facts(), read_state(loaded.base));
}

fs::path merge(const fs::path& run, const fs::path& out, bool average, const StopAsked& stop) {
  const fs::path checkpoint = find_checkpoint(run);
  RunState state = read_state(checkpoint);
  RunConfig config = saved_config(state, checkpoint);
  if (adapters_of(config).rank == 0) return merge_files(run, checkpoint, state, out, average, stop);
  if (average) check_averages(config);

  NewFolder merged(out, stop);
  install_allocator();
  const fs::path base = find_base(config);
  check_base(base, config, state.base_hash);

  // Merge in float32, whatever the dtype in which the run kept the base.
  const auto model = load_frozen(base, config, state.sizes, {}, at::kCPU);
  const std::string base_weights = weights_checksum(*model);
  add_adapters(*model, {.config = config, .device = at::kCPU, .matrices = at::kFloat});
  load_parameters(checkpoint, saved_tensors(*model));
  if (average) load_averages(checkpoint, trained_parameters(*model));

  for (Linear* layer : adapted_layers(*model, adapters_of(config).layers)) {
    merged.check_stop();
    layer->merge_adapter();
  }

  // The tensors of the base were loaded as constants, so make them parameters again.
  replace_parameters(*model, [](const NamedParameter& p) {
    return Variable::parameter(p.parameter.data(), p.path);
  });

  // Record the base as the model that the run began with. The task dpo uses that model as its
  // reference.
  if (config.train.init_from.empty()) {
    config.train.init_from = adapters_of(config).base;
    state.frozen_hash = base_weights;
  }

  // Reset the settings of the adapters and of their moving average.
  config.transforms["adapters"] = AnyConfig::of<AdaptersConfig>();
  config.optim.ema_decay = 0;  // only the adapters have averages
  // Every checkpoint stores an optimizer. Plain SGD has no state, so it adds nothing.
  OptimConfig stateless;
  stateless.kind = "sgd";

  state.config = config.schema().to_toml(&config, /*comments=*/false);
  reset_training_state(state);

  const fs::path written = save_checkpoint(merged.path(), state, saved_tensors(*model),
                                           Optimizer(stateless, parameters(*model)), Retention{});
  merged.publish();
  return out / "checkpoints" / written.filename();
}

}  // namespace lathe
