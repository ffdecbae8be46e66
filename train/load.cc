#include "train/load.h"

#include <ATen/ops/zeros.h>

#include "amp/amp.h"
#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/quantised.h"

namespace lathe {
namespace {

bool is_adapter(Role role) { return role == Role::lora_a || role == Role::lora_b; }

GPT shapes_of(const ModelConfig& config) {
  const ShapesAlone guard;
  return GPT(config);
}

RunConfig config_of(const RunState& state, const fs::path& checkpoint) {
  return config_from_toml(state.config, (checkpoint / "state.json").string());
}

fs::path find_base(const RunConfig& config) {
  try {
    return find_checkpoint(config.model.lora_base);
  } catch (const Error& e) {
    fail(e.code(), "model.lora_base: ", e.what());
  }
}

/// Of the matrices in a model file.
std::string dtype_of_file(const fs::path& checkpoint) {
  const SafetensorsFile file(checkpoint / "model.safetensors");
  for (const auto& t : file.tensors()) {
    const auto dtype = dtype_from_safetensors(t.dtype);
    if (t.shape.size() == 2 && dtype) return dtype_name(*dtype);
  }
  return "none";
}

int64_t bytes_of(GPT& model) {
  int64_t bytes = 0;
  for (const auto& p : parameters(model)) {
    const Precision* kept = precision_of(p.parameter);
    if (kept != nullptr && kept->quantised) {
      bytes += kept->quantised->nbytes();
    } else {
      bytes += static_cast<int64_t>(p.parameter.data().nbytes());
      if (kept != nullptr && kept->low.defined()) bytes += static_cast<int64_t>(kept->low.nbytes());
    }
  }
  return bytes;
}

}  // namespace

GPT load_frozen(const fs::path& checkpoint, const ModelConfig& config, const Keep& keep, at::Device device) {
  const MemoryScope memory(Memory::parameters);
  const bool quantise = keep.dtype == "int8" || keep.dtype == "nf4";
  const auto format = keep.dtype == "int8" ? QuantisedTensor::Format::int8 : QuantisedTensor::Format::nf4;
  const at::ScalarType matrices = quantise ? keep.rest : dtype_from_config(keep.dtype);
  const fs::path path = checkpoint / "model.safetensors";
  const SafetensorsFile file(path);
  size_t used = 0;
  GPT model = shapes_of(config);
  replace_parameters(model, [&](const NamedParameter& found) {
    const Variable& shape = found.parameter;
    if (is_adapter(found.role))
      return Variable::parameter(at::zeros(shape.sizes(), at::TensorOptions(device)), found.path);
    const TensorEntry& entry = file.at(found.path);
    ++used;
    const at::Tensor t = entry_tensor(entry, shape.sizes(), path);
    Variable loaded;
    if (quantise && found.block >= 0 && is_linear_weight(found.role)) {
      shape.leaf().precision.quantised = std::make_shared<const QuantisedTensor>(t, format, keep.double_quant, device);
      loaded = shape;
    } else {
      const auto dtype = shape.dim() >= 2 ? matrices : at::kFloat;
      loaded = Variable(t.to(device, dtype, /*non_blocking=*/false, /*copy=*/true));
    }
    file.release(entry);
    return loaded;
  });
  if (used != file.tensors().size()) {
    fail(Exit::checkpoint, path.string(), " has ", file.tensors().size(), " tensors, the model ", used);
  }
  return model;
}

void adopt_base(LoadedConfig& loaded) {
  RunConfig& c = loaded.config;
  if (c.model.lora == 0) return;
  const fs::path base = loaded.base = find_base(c);
  const RunConfig from = config_of(read_state(base), base);
  if (from.model.lora > 0) {
    fail(Exit::usage, origin_of(loaded, "model.lora_base"), ": ", c.model.lora_base,
         " holds adapters itself; merge it first (`lathe merge`)");
  }
  for (const auto& f : run_schema().fields()) {
    if (!f.key.starts_with("model.") || f.key.starts_with("model.lora") || f.key == "model.dropout") continue;
    const ConfigValue theirs = run_schema().get(&from, f), ours = run_schema().get(&c, f);
    const bool from_data = f.key == "model.vocab_size" && c.model.vocab_size == 0;
    if (loaded.origins.contains(f.key) && ours != theirs && !from_data) {
      fail(Exit::usage, origin_of(loaded, f.key), ": ", f.key, " = ", toml_text(ours), ", but model.lora_base has ",
           toml_text(theirs), "; leave it out");
    }
    run_schema().set(&c, f.key, theirs, base.string());
  }
}

GPT load_base(const fs::path& base, const RunConfig& config, at::Device device) {
  const ModelConfig& m = config.model;
  return load_frozen(base, m, {m.lora_dtype, m.lora_double_quant, matmul_dtype(compute_dtype(config.amp))}, device);
}

std::string base_hash(const fs::path& base) {
  if (base.empty()) return "";
  const fs::path path = base / "manifest.json";
  const Json manifest = parse_json(read_file(path, Exit::checkpoint), path.string(), Exit::checkpoint);
  const Json files = json_get<Json>(manifest, "files", path.string(), Exit::checkpoint);
  const Json model = json_get<Json>(files, "model.safetensors", path.string(), Exit::checkpoint);
  return json_get<std::string>(model, "xxh3", path.string(), Exit::checkpoint);
}

void check_base(const fs::path& base, const RunConfig& config, const std::string& hash) {
  if (const std::string now = base_hash(base); now != hash) {
    fail(Exit::checkpoint, "model.lora_base = ", config.model.lora_base,
         " is not what the adapters were trained on (checksum ", now, " instead of ", hash,
         "); has it been trained further? Name the checkpoint itself instead of its run");
  }
}

void check_tokenizer(const fs::path& data, const std::optional<DataManifest>& manifest, const RunState& state) {
  if (manifest && state.tokenizer &&
      (manifest->tokenizer.kind() != state.tokenizer->kind() ||
       manifest->tokenizer.vocabulary() != state.tokenizer->vocabulary())) {
    fail(Exit::data, data.string(),
         " was made with another tokenizer or vocabulary than the run's data; its loss would mean nothing");
  }
}

void check_base_tokenizer(const LoadedConfig& loaded, const std::optional<DataManifest>& manifest) {
  if (!loaded.base.empty()) check_tokenizer(loaded.config.data.dir, manifest, read_state(loaded.base));
}

LoadedModel LoadedModel::open(const fs::path& run, const std::string& device_name, int threads,
                              const std::string& dtype, bool double_quant) {
  const fs::path checkpoint = find_checkpoint(run);
  RunState state = read_state(checkpoint);
  RunConfig config = config_of(state, checkpoint);
  install_allocator();
  const std::string opened = open_device(device_name);
  set_up_compute(opened, threads, config.amp.tf32);
  use_kernels(config.train.kernels == "auto");
  const at::Device device(opened == "cuda" ? at::kCUDA : at::kCPU);
  const bool adapters = config.model.lora > 0;
  const fs::path base = adapters ? find_base(config) : checkpoint;
  if (adapters) check_base(base, config, state.base_hash);
  const std::string kept = !dtype.empty() ? dtype : adapters ? config.model.lora_dtype : "fp32";
  Compute compute{compute_dtype(config.amp), config.amp.cache};
  if (adapters && kept == "fp32") compute.dtype = at::kFloat;
  if (kept == "bf16" || kept == "fp16") compute.dtype = dtype_from_config(kept);
  if ((kept == "int8" || kept == "nf4") && compute.dtype != at::kHalf) compute.dtype = at::kBFloat16;

  const bool frozen = adapters || kept != "fp32";
  const Keep keep{kept, double_quant || (dtype.empty() && config.model.lora_double_quant), matmul_dtype(compute.dtype)};
  LoadedModel m{std::move(state),
                config,
                device,
                frozen ? load_frozen(base, config.model, keep, device) : GPT(config.model),
                compute,
                dtype_of_file(checkpoint),
                kept};
  if (adapters || !frozen) load_parameters(checkpoint, trained_parameters(m.model));
  if (!frozen) {
    if (device.is_cuda()) move_to(m.model, device, at::kFloat);
    const auto params = parameters(m.model);
    make_fp8_layers(params, config.amp);
    load_fp8_history(checkpoint, params);
    make_working_copies(params, compute.dtype, config.amp.working_copies, false);
  }
  m.weight_bytes = bytes_of(m.model);
  m.loading_peak_bytes = device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  return m;
}

fs::path merge(const fs::path& run, const fs::path& out) {
  const fs::path checkpoint = find_checkpoint(run);
  RunState state = read_state(checkpoint);
  RunConfig config = config_of(state, checkpoint);
  if (config.model.lora == 0) fail(Exit::usage, run.string(), " has no adapters to merge: its model.lora is 0");
  if (!list_checkpoints(out).empty())
    fail(Exit::usage, out.string(), " already holds a run; give another folder with --out");
  install_allocator();
  const fs::path base = find_base(config);
  check_base(base, config, state.base_hash);
  GPT model = load_frozen(base, config.model, {}, at::kCPU);
  load_parameters(checkpoint, trained_parameters(model));
  model.merge_adapters();
  replace_parameters(model, [](const NamedParameter& p) { return Variable::parameter(p.parameter.data(), p.path); });
  const ModelConfig plain;
  config.model.lora = plain.lora;
  config.model.lora_alpha = plain.lora_alpha;
  config.model.lora_base = plain.lora_base;
  config.model.lora_dtype = plain.lora_dtype;
  config.model.lora_double_quant = plain.lora_double_quant;
  OptimConfig stateless;
  stateless.kind = "sgd";
  state.config = run_schema().to_toml(&config, /*comments=*/false);
  state.metrics_bytes = 0;
  state.eval_due = false;
  state.val_loss.reset(), state.best_val_loss.reset();  // they were the unmerged model's
  state.scaler.reset();
  state.branched_from.clear();
  state.base_hash.clear();
  const auto params = parameters(model);
  return save_checkpoint(out, state, params, Optimizer(stateless, params), 1);
}

}  // namespace lathe
