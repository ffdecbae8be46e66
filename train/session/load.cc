#include "train/session/load.h"

#include <algorithm>

#include "amp/amp.h"
#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "core/quantized.h"
#include "train/config/transform.h"
#include "train/store/checkpoint_tensors.h"
#include "train/transforms/adapters.h"
#include "train/transforms/frozen.h"

namespace lathe {
namespace {

/// Returns the dtype of the matrices in a checkpoint's model file; "none" if the file has no
/// matrix.
std::string dtype_of_file(const fs::path& checkpoint) {
  const CheckpointTensors file(checkpoint, CheckpointPart::model);
  for (const auto& t : file.tensors()) {
    const auto dtype = dtype_from_safetensors(t.dtype);
    if (t.shape.size() == 2 && dtype) return dtype_name(*dtype);
  }
  return "none";
}

/// Returns the bytes of a model's weights, including working copies.
int64_t bytes_of(Model& model) {
  int64_t bytes = 0;
  for (const auto& p : parameters(model)) {
    const Precision* kept = precision_of(p.parameter);
    if (kept != nullptr && kept->quantized) {
      bytes += kept->quantized->nbytes();
    } else {
      bytes += static_cast<int64_t>(p.parameter.data().nbytes());
      if (kept != nullptr && kept->low.defined()) bytes += static_cast<int64_t>(kept->low.nbytes());
    }
  }
  return bytes;
}

bool has_quantized(Model& model) {
  const auto all = parameters(model);
  return std::any_of(all.begin(), all.end(), [](const NamedParameter& p) {
    const Precision* kept = precision_of(p.parameter);
    return kept != nullptr && kept->quantized;
  });
}

LoadedModel open_checkpoint(const fs::path& checkpoint, const std::string& device_name, int threads,
                            const std::string& dtype, bool double_quant, bool average) {
  RunState state = read_state(checkpoint);
  RunConfig config = saved_config(state, checkpoint);

  install_allocator();
  const std::string opened = open_device(device_name);
  configure_backend(opened, threads, config.amp.tf32);
  use_kernels(config.train.kernels == "auto");
  const at::Device device(opened == "cuda" ? at::kCUDA : at::kCPU);

  // Adapters are saved without the base, the model that they are trained on.
  const AdaptersConfig& adapted = adapters_of(config);
  const bool adapters = adapted.rank > 0;
  const fs::path base = adapters ? find_base(config) : checkpoint;
  if (adapters) check_base(base, config, state.base_hash);

  // Choose the form in which weights are kept, and the dtype in which matrix products compute.
  const std::string kept = !dtype.empty() ? dtype : adapters ? adapted.dtype : "fp32";
  Compute compute{compute_dtype(config.amp), config.amp.cache};
  if (adapters && kept == "fp32") compute.dtype = at::kFloat;
  if (kept == "bf16" || kept == "fp16") compute.dtype = dtype_from_config(kept);
  if ((kept == "int8" || kept == "nf4") && compute.dtype != at::kHalf)
    compute.dtype = at::kBFloat16;

  const bool frozen = adapters || kept != "fp32";

  if (average) check_averages(config);
  if (average && frozen && !adapters)
    fail(Exit::usage, "command line: --weights ema is in float32; leave --load-dtype out");

  const FrozenFormat keep{.dtype = kept,
                          .double_quant = double_quant || (dtype.empty() && adapted.double_quant),
                          .other_dtype = matmul_dtype(compute.dtype)};
  const ModelKind& kind = *find_model_kind(config.model.kind);
  LoadedModel m{.state = state,
                .config = config,
                .device = device,
                .model = frozen ? load_frozen(base, config, state.sizes, keep, device)
                                : kind.make(config.model.own, state.sizes),
                .compute = compute,
                .saved_dtype = dtype_of_file(checkpoint),
                .load_dtype = kept};

  const bool quantizes = kept == "int8" || kept == "nf4";
  if (quantizes && !adapters && !has_quantized(*m.model)) {
    fail(Exit::usage, "command line: --load-dtype ", kept,
         " is for linear layers in repeated blocks, and model.kind = \"", config.model.kind,
         "\" has none; use bf16");
  }

  if (!frozen && device.is_cuda()) move_to(*m.model, device, at::kFloat);
  // Only float32 weights are converted to fp8.
  RunConfig transformed = config;
  if (frozen && !adapters && config.amp.dtype == "fp8") transformed.amp.dtype = "bf16";
  apply_transforms(*m.model, {.config = transformed, .device = device, .matrices = at::kFloat});
  if (adapters || !frozen) load_parameters(checkpoint, saved_tensors(*m.model));
  if (average) load_averages(checkpoint, trained_parameters(*m.model));

  if (!frozen) {
    const auto params = parameters(*m.model);
    load_fp8_history(checkpoint, params);
    make_working_copies(params, compute.dtype, config.amp.working_copies, false);
  }

  m.weight_bytes = bytes_of(*m.model);
  m.loading_peak_bytes = device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  return m;
}

}  // namespace

LoadedModel LoadedModel::open(const fs::path& run, const std::string& device_name, int threads,
                              const std::string& dtype, bool double_quant, const std::string& which,
                              bool average) {
  for (int attempt = 1;; ++attempt) {
    const auto there = list_checkpoints(run);
    try {
      return open_checkpoint(find_checkpoint(run, which), device_name, threads, dtype, double_quant,
                             average);
    } catch (const Error&) {
      if (attempt == 3 || list_checkpoints(run) == there) throw;
    }
  }
}

}  // namespace lathe
