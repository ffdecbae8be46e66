#include "train/formats/peft.h"

#include <ATen/ops/isfinite.h>

#include <cmath>
#include <set>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "core/mode.h"
#include "nn/layers.h"
#include "train/formats/exported.h"
#include "train/formats/hugging_face.h"
#include "train/store/run_folder.h"
#include "train/transforms/adapters.h"
#include "train/transforms/frozen.h"

namespace lathe {
namespace {

constexpr const char* peft_config_file = "adapter_config.json";
constexpr const char* peft_tensor_file = "adapter_model.safetensors";
constexpr const char* peft_prefix = "base_model.model.";

/// For each parameter of an adapter, the end of its name in Lathe and in PEFT.
constexpr std::pair<const char*, const char*> adapter_parts[]{
    {".lora_a", ".lora_A.weight"},
    {".lora_b", ".lora_B.weight"},
    {".lora_m", ".lora_magnitude_vector"}};

/// Returns the name of a layer's module in transformers, and whether transformers stores its weight
/// transposed; nullopt if the family has no such layer.
std::optional<std::pair<std::string, bool>> peft_module_of(const Family& family,
                                                           const std::string& layer) {
  const auto [rule, block] = rule_of(family, layer + ".weight");
  if (rule == nullptr) return std::nullopt;
  const std::string name = with_block(rule->theirs, block);
  return std::pair(name.substr(0, name.rfind('.')), rule->transposed);
}

/// The values that are read from adapter_config.json.
struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool dora = false;
};

PeftConfig read_peft_config(const fs::path& folder) {
  const fs::path path = folder / peft_config_file;
  const std::string where = path.string();
  const Json json = parse_json(read_file(path, Exit::checkpoint), where, Exit::checkpoint);
  if (!json.is_object()) fail(Exit::checkpoint, where, " holds no JSON object");

  const auto type = json_get<std::string>(json, "peft_type", where, Exit::checkpoint);
  if (type != "LORA")
    fail(Exit::checkpoint, where, ": peft_type \"", printable_line(type),
         "\"; this build reads only LORA");
  if (json.contains("bias") && json["bias"] != "none")
    fail(Exit::checkpoint, where, ": \"bias\" must be none: this build's adapters have no biases");

  // The code above and below this list reads or checks some of the following keys. The values of
  // the other keys follow from the tensors, or do not change what adapters compute.
  static const std::set<std::string> passed{"auto_mapping",
                                            "base_model_name_or_path",
                                            "bias",
                                            "eva_config",
                                            "exclude_modules",
                                            "fan_in_fan_out",
                                            "inference_mode",
                                            "layers_pattern",
                                            "layers_to_transform",
                                            "lora_alpha",
                                            "lora_dropout",
                                            "megatron_core",
                                            "peft_type",
                                            "peft_version",
                                            "qalora_group_size",
                                            "r",
                                            "revision",
                                            "runtime_config",
                                            "target_modules",
                                            "task_type",
                                            "use_dora",
                                            "use_rslora"};
  // These initializations leave the base unchanged; PEFT's other initializations change the base.
  static const std::set<std::string> plain_starts{"gaussian", "orthogonal", "eva"};
  for (const auto& [key, value] : json.items()) {
    const bool is_plain_start =
        value.is_boolean() ||
        (value.is_string() && plain_starts.contains(value.get<std::string>()));
    if (key == "init_lora_weights" && is_plain_start) continue;
    const bool is_off = value.is_null() || value == false || value.empty();
    if (is_off || passed.contains(key)) continue;
    fail(Exit::checkpoint, where, ": the key \"", printable_line(key),
         "\" may change what the adapters compute, and this build does not know it");
  }

  const auto flag = [&](const char* key) {
    return json.contains(key) && json_get<bool>(json, key, where, Exit::checkpoint);
  };
  PeftConfig c{.rank = json_integer(json, "r", 1, 10000, where, Exit::checkpoint),
               .alpha = json_real(json, "lora_alpha", where, Exit::checkpoint),
               .dora = flag("use_dora")};
  // Rank-stabilized adapters are scaled by alpha / sqrt(r), but Lathe scales adapters by alpha / r.
  const bool is_stabilized = flag("use_rslora");
  if (is_stabilized) c.alpha *= std::sqrt(static_cast<double>(c.rank));
  if (!(c.alpha > 0) || c.alpha > 1e6)
    fail(Exit::checkpoint, where, ": lora_alpha", is_stabilized ? " * sqrt(r), the scale," : "",
         " must be above 0 and at most 1000000");
  return c;
}

/// The tensors of a PEFT folder, keyed by the names of Lathe's parameters, and the layers with
/// adapters.
struct PeftTensors {
  PeftTensors(const fs::path& folder, const Family& family, Model& shapes)
      : path(folder / peft_tensor_file), file(path) {
    std::set<std::string> known;
    for_each_module<Linear>(shapes, [&](const std::string& layer, int64_t block, Linear&) {
      const auto module = peft_module_of(family, layer);
      if (!module) return;
      for (const auto& [ours, theirs] : adapter_parts) {
        for (const char* end : {"", ".weight"}) {  // versions of PEFT name magnitudes differently
          const TensorEntry* found = file.find(str(peft_prefix, module->first, theirs, end));
          if (found == nullptr) continue;
          entries[layer + ours] = found;
          known.insert(found->name);
          if (layers.insert(layer).second) is_default = is_default && block >= 0;
        }
      }
      if (block >= 0 && !layers.contains(layer)) is_default = false;
    });
    for (const TensorEntry& t : file.tensors()) {
      if (known.contains(t.name)) continue;
      fail(Exit::checkpoint, path.string(), ": tensor \"", printable_line(t.name),
           "\" belongs to no linear layer of the base");
    }
    if (layers.empty()) fail(Exit::checkpoint, path.string(), " holds no adapters");
  }

  /// Returns the value of adapters.layers.
  std::string patterns() const {
    std::string all;
    if (is_default) return all;
    for (const std::string& layer : layers) all += (all.empty() ? "" : ",") + layer;
    return all;
  }
  /// Copies the values of a parameter from a tensor of the file.
  void copy_to(const NamedParameter& p) const {
    const auto found = entries.find(p.path);
    if (found == entries.end())
      fail(Exit::checkpoint, path.string(), " lacks a tensor for ", p.path);
    at::Tensor t = entry_tensor(*found->second, found->second->shape, path).to(at::kFloat);
    if (p.path.ends_with(".lora_m")) t = t.reshape({-1});
    if (t.sizes() != p.parameter.sizes()) {
      fail(Exit::checkpoint, path.string(), ": tensor \"", printable_line(found->second->name),
           "\" is ", lathe::describe(at::IntArrayRef(found->second->shape)),
           ", and the adapter needs ", lathe::describe(p.parameter.sizes()));
    }
    if (!at::isfinite(t).all().item<bool>())
      fail(Exit::diverged, path.string(), ": tensor \"", printable_line(found->second->name),
           "\" has elements that are not finite");
    p.parameter.data().copy_(t);
  }

  fs::path path;
  SafetensorsFile file;
  std::map<std::string, const TensorEntry*> entries;
  std::set<std::string> layers;
  bool is_default = true;  // whether an empty adapters.layers selects exactly `layers`
};

/// Returns the config of the run that holds the imported adapters.
RunConfig imported_config(const RunConfig& base, const PeftConfig& peft, const PeftTensors& tensors,
                          const PeftImport& o) {
  RunConfig config;
  config.model = base.model;
  config.data.dir = "";
  config.train.batch_size = 1;
  config.train.out_dir = o.out.string();
  config.schedule.min_lr = config.optim.lr / 10;  // the value that end_of_schedule() returns
  const Schema& keys = config.schema();
  const std::string where = (o.folder / peft_config_file).string();
  keys.set(&config, "adapters.rank", peft.rank, where);
  keys.set(&config, "adapters.alpha", peft.alpha, where);
  keys.set(&config, "adapters.dora", peft.dora, where);
  keys.set(&config, "adapters.base", o.base, where);
  keys.set(&config, "adapters.layers", tensors.patterns(), where);
  return config;
}

/// Returns the family whose tensor names PEFT uses for a base. Throws Exit::usage if there is none.
const Family& family_of_base(const RunConfig& base, const std::string& name) {
  try {
    return *family_for(base).first;
  } catch (const Error&) {
    fail(Exit::usage, "command line: --base: ", name, " has a model of kind ", base.model.kind,
         " that can't be exported to Hugging Face's format, and PEFT's adapters are for models in "
         "this format; give a run whose model can be exported");
  }
}

}  // namespace

bool is_peft(const fs::path& folder) { return fs::exists(folder / peft_config_file); }

fs::path import_peft(const PeftImport& o) {
  const fs::path base = find_checkpoint(o.base);
  const RunState of_base = read_state(base);
  const RunConfig from = saved_config(of_base, base);
  if (adapters_of(from).rank > 0)
    fail(Exit::usage, "command line: --base: ", o.base,
         " holds adapters; merge them into their base first (`lathe merge`)");

  install_allocator();
  const PeftConfig peft = read_peft_config(o.folder);
  const Family& family = family_of_base(from, o.base);
  const auto model = load_frozen(base, from, of_base.sizes, {}, at::kCPU);
  const PeftTensors tensors(o.folder, family, *model);
  const RunConfig config = imported_config(from, peft, tensors, o);

  NewFolder out(o.out, o.stop);
  add_adapters(*model, {.config = config, .device = at::kCPU, .matrices = at::kFloat});
  const auto trained = trained_parameters(*model);
  for (const NamedParameter& p : trained) {
    out.check_stop();
    tensors.copy_to(p);
  }
  if (trained.size() != tensors.entries.size())
    fail(Exit::checkpoint, tensors.path.string(), " has magnitudes, but ", peft_config_file,
         " does not set use_dora");

  RunState state;
  state.imported_from = o.folder.string();
  state.tokenizer = of_base.tokenizer;
  if (state.tokenizer) {
    // Programs that train adapters save the chat template of the training beside them.
    TokenizerSettings settings = read_settings(o.folder);
    settings.fill_from(of_base.tokenizer->settings());
    state.tokenizer->set_settings(std::move(settings));
  }
  state.sizes = of_base.sizes;
  state.base_hash = base_hash(base);
  state.config = config.schema().to_toml(&config, /*comments=*/false);
  state.threads = default_threads();
  state.isa = cpu_isa();
  state.device_model = device_model("cpu");

  OptimConfig stateless;  // plain SGD has no state
  stateless.kind = "sgd";
  const fs::path written = save_checkpoint(out.path(), state, saved_tensors(*model),
                                           Optimizer(stateless, trained), Retention{});
  write_config_record(out.path(), config, {});
  out.publish();
  return o.out / "checkpoints" / written.filename();
}

void export_peft(const ExportOptions& o) {
  const fs::path checkpoint = find_checkpoint(o.run, o.checkpoint);
  const RunState state = read_state(checkpoint);
  const RunConfig config = saved_config(state, checkpoint);
  const AdaptersConfig& adapters = adapters_of(config);
  if (adapters.rank == 0)
    fail(Exit::usage, o.run.string(),
         " has no adapters, which --format peft writes; use --format hf");
  if (o.average || !o.chat_template.empty())
    fail(Exit::usage,
         "command line: --weights and --chat-template do not apply to --format peft; leave them "
         "out, or merge the adapters (`lathe merge`) and export the merged run");

  const Family& family = *family_for(config).first;
  const CheckpointTensors model(checkpoint, CheckpointPart::model);
  NewFolder out(o.out, o.stop);
  Snapshot snapshot;
  std::set<std::string> modules;
  bool is_transposed = false;
  for (const TensorEntry& entry : model.tensors()) {
    for (const auto& [ours, theirs] : adapter_parts) {
      if (!entry.name.ends_with(ours)) continue;
      out.check_stop();
      const std::string layer = entry.name.substr(0, entry.name.size() - std::string(ours).size());
      const auto module = peft_module_of(family, layer);
      if (!module)
        fail(Exit::usage, "the family ", family.model_type, " has no layer for the adapter of ",
             layer);
      modules.insert(module->first);
      is_transposed = is_transposed || module->second;

      at::Tensor t = entry_tensor(model.at(entry.name), entry.shape, model.path());
      if (!o.dtype.empty() && t.dim() == 2) t = t.to(dtype_from_config(o.dtype));
      snapshot.held.push_back(t.contiguous());
      snapshot.model.push_back(
          make_entry(str(peft_prefix, module->first, theirs), snapshot.held.back()));
    }
  }
  write_safetensors(out.path() / peft_tensor_file, snapshot.model, {{"format", "pt"}});

  const Json json{{"peft_type", "LORA"},
                  {"task_type", "CAUSAL_LM"},
                  {"base_model_name_or_path", adapters.base},
                  {"r", adapters.rank},
                  {"lora_alpha", adapters.alpha},
                  {"lora_dropout", 0.0},
                  {"use_dora", adapters.dora},
                  {"use_rslora", false},
                  {"bias", "none"},
                  {"fan_in_fan_out", is_transposed},
                  {"inference_mode", true},
                  {"target_modules", modules}};
  write_file_durably(out.path() / peft_config_file, json_text(json, 1) + "\n");
  if (state.tokenizer && state.tokenizer->bpe() != nullptr) {
    Json head{{"max_position_embeddings", model_context(config)}};
    write_tokenizer(*state.tokenizer, out.path(), head);
  }
  out.publish();
}

}  // namespace lathe
