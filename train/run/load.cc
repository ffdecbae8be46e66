#include "train/run/load.h"

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
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

bool is_adapter(Role role) { return role == Role::lora_a || role == Role::lora_b; }

GPT shapes_of(const ModelConfig& config) {
  const ShapesAlone guard;
  return GPT(config);
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

void check_tokenizer(const fs::path& data, const std::optional<DataManifest>& manifest, const RunState& state) {
  if (manifest && state.tokenizer &&
      (manifest->tokenizer.kind() != state.tokenizer->kind() ||
       manifest->tokenizer.vocabulary() != state.tokenizer->vocabulary())) {
    fail(Exit::data, data.string(),
         " was made with another tokenizer or vocabulary than the run's data; its loss would mean nothing");
  }
}

static LoadedModel open_checkpoint(const fs::path& checkpoint, const std::string& device_name, int threads,
                                   const std::string& dtype, bool double_quant) {
  RunState state = read_state(checkpoint);
  RunConfig config = saved_config(state, checkpoint);
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

LoadedModel LoadedModel::open(const fs::path& run, const std::string& device_name, int threads,
                              const std::string& dtype, bool double_quant, const std::string& which) {
  for (int attempt = 1;; ++attempt) {
    const auto there = list_checkpoints(run);
    try {
      return open_checkpoint(find_checkpoint(run, which), device_name, threads, dtype, double_quant);
    } catch (const Error&) {
      if (attempt == 3 || list_checkpoints(run) == there) throw;
    }
  }
}

}  // namespace lathe
