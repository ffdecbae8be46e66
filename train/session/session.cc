#include "train/session/session.h"

#include "amp/amp.h"
#include "autograd/node.h"
#include "autograd/pinned_activations.h"
#include "autograd/recompute.h"
#include "autograd/tensor_cut.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/storage.h"
#include "dist/sequence_ranks.h"
#include "train/config/transform.h"
#include "train/session/stages.h"
#include "train/transforms/adapters.h"

namespace lathe {

namespace {

/// If model.vocab_size is 0, returns the config with the vocabulary size of the data.
LoadedConfig with_vocabulary(LoadedConfig loaded, const DatasetInfo& facts) {
  int64_t* const vocab_size = loaded.config.model.own.find<int64_t>("vocab_size");
  if (vocab_size != nullptr && *vocab_size == 0) *vocab_size = facts.vocab_size;
  return loaded;
}

}  // namespace

RunData RunData::open(LoadedConfig loaded) {
  std::unique_ptr<Data> data = open_data(loaded.config.data);
  const DatasetInfo& facts = data->facts();
  check_source_tokenizer(loaded, facts);
  const Task& task = task_of(loaded, facts);
  check_task_keys(loaded, task);
  loaded = with_vocabulary(std::move(loaded), facts);
  const ModelSizes sizes = task.fit(loaded, *data);

  normalize_as_source(loaded, *data);
  loaded = resolve_frozen(std::move(loaded), task, facts);
  return {.loaded = std::move(loaded), .data = std::move(data), .task = &task, .sizes = sizes};
}

namespace {

void check_device(const LoadedConfig& loaded, const std::string& device) {
  const AmpConfig& amp = loaded.config.amp;
  const int capability = device == "cuda" ? cuda_api().compute_capability() : 0;
  if (device == "cuda" && capability < 80) {
    fail(Exit::usage, origin_of(loaded, "train.device"), ": ", device_model(device),
         " has compute capability ", capability / 10, ".", capability % 10,
         ", but Lathe needs 8.0 or higher; set train.device = \"cpu\"");
  }

  const std::string& offload_dir = loaded.config.memory.offload_dir;
  if (!offload_dir.empty() && !fs::is_directory(offload_dir)) {
    fail(Exit::usage, origin_of(loaded, "memory.offload_dir"), ": there is no folder ", offload_dir,
         ", which memory.offload_dir names; create it, or leave the key out");
  }

  const std::string& offload = loaded.config.memory.offload;
  if (offload != "none" && offload != "activations" && device == "cuda") {
    fail(Exit::usage, origin_of(loaded, "memory.offload"),
         ": on a GPU, memory.offload can only be \"activations\", not \"", offload,
         "\"; set memory.offload to \"activations\", or set train.device = \"cpu\"");
  }

  if (amp.tf32 && device == "cpu") {
    fail(Exit::usage, origin_of(loaded, "amp.tf32"),
         ": amp.tf32 needs an NVIDIA GPU, but this run is on ", device_model(device),
         "; leave amp.tf32 out");
  }
}

/// Checks that the range of blocks that memory.recompute names is within the model.
void check_recomputed_blocks(const LoadedConfig& loaded, const Model& model) {
  const std::string& name = loaded.config.memory.recompute;
  const RecomputePolicy policy = *recompute_policy(name);
  if (policy.last == SIZE_MAX) return;

  int64_t blocks = 0;
  for (const NamedParameter& p : parameters(model)) blocks = std::max(blocks, p.block + 1);
  // The parameters of some models have no block numbers. For such a model, the first step shows
  // whether it runs blocks.
  if (blocks == 0 || policy.last < static_cast<size_t>(blocks)) return;
  fail(Exit::usage, origin_of(loaded, "memory.recompute"), ": memory.recompute = \"", name,
       "\" goes beyond the model's ", blocks, " blocks, which are counted from 0");
}

/// Throws Exit::usage if the tensor ranks can't divide the positions of this run's rows.
void check_sequence(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const int ranks = world().tensor().size, contexts = world().context().size;
  if (!divides_sequence(c.dist)) return;
  const auto refuse = [&](const auto&... why) {
    fail(Exit::usage, origin_of(loaded, "dist.sequence_parallel"),
         ": dist.sequence_parallel = true ", why...);
  };

  if (!find_model_kind(c.model.kind)->divides_positions) {
    refuse("needs a model kind whose positions can be divided, such as gpt or llama, not \"",
           c.model.kind, "\"; leave dist.sequence_parallel out");
  }
  const int64_t length = batch_sizes(c).block_size / contexts;
  if (length % ranks != 0) {
    refuse("can't divide the ", length,
           contexts > 1 ? " positions that a process has of a row" : " positions of a row",
           " equally among the ", ranks,
           " processes of dist.tensor; change data.window or model.block_size, or leave "
           "dist.sequence_parallel out");
  }
}

/// Throws Exit::usage if the context ranks can't divide the positions of this run's rows.
void check_positions(const LoadedConfig& loaded, const Task& task) {
  const RunConfig& c = loaded.config;
  const int ranks = world().context().size;
  if (ranks == 1) return;
  const auto refuse = [&](const auto&... why) {
    fail(Exit::usage, origin_of(loaded, "dist.context"), ": dist.context = ", ranks, " ", why...);
  };

  if (!task.sums_over_positions()) {
    refuse("is not for the task ", task.name(),
           ", whose loss does not add up over the positions of rows; set dist.context to 1");
  }
  if (!find_model_kind(c.model.kind)->divides_positions) {
    refuse("needs a model kind whose positions can be divided, such as gpt or llama, not \"",
           c.model.kind, "\"; set dist.context to 1");
  }
  const int64_t length = batch_sizes(c).block_size;
  if (length % (int64_t{2} * ranks) != 0) {
    refuse("cuts each row into ", 2 * ranks, " equal chunks, which is not possible for ", length,
           " positions; change dist.context, data.window or model.block_size");
  }
}

/// Assigns the parameters to buckets. With dist.shard, a parameter whose optimizer needs the
/// complete tensor is not cut among ranks.
ShardLayout make_layout(const RunConfig& config, std::span<const NamedParameter> params,
                        const StageParameters* stage) {
  const bool is_sharded = config.dist.shard != "none";
  return {params,
          is_sharded ? divisible_parameters(config.optim, {params.begin(), params.end()})
                     : std::vector<bool>(params.size(), true),
          {.bucket_bytes = static_cast<int64_t>(1e6 * config.dist.bucket_mb),
           .ranks = world().data().size,
           .blocks_apart = config.dist.shard == "parameters",
           .reduce_dtype = config.dist.reduce_dtype == "bf16" ? at::kBFloat16 : at::kFloat,
           .parts = stage != nullptr ? stage->parts_of_local() : std::vector<StagePart>()}};
}

bool divides_state_of(const RunConfig& config) {
  return config.dist.shard != "none" && world().data().size > 1;
}

/// Returns the folder in which scratch files are created.
fs::path scratch_folder(const RunConfig& c) {
  return c.memory.offload_dir.empty() ? c.train.out_dir : c.memory.offload_dir;
}

/// Makes the optimizer. The messages of the optimizer's usage errors begin with a key. Throws such
/// an error again, with the origin of that key in front of the message.
Optimizer make_optimizer(const LoadedConfig& loaded, const std::vector<NamedParameter>& params,
                         const ShardLayout& layout, const StageParameters* stage,
                         std::optional<uint64_t> rounding_seed) {
  const RunConfig& c = loaded.config;
  std::vector<ElementRange> owned;
  if (stage != nullptr)
    owned = stage->owned_ranges();
  else if (divides_state_of(c))
    owned = layout.ranges(world().data().rank);

  try {
    return Optimizer(c.optim, params, rounding_seed, {}, owned,
                     c.memory.offloads("optimizer") ? scratch_folder(c) : "");
  } catch (const Error& e) {
    if (e.code() != Exit::usage) throw;
    const std::string what = e.what();
    std::string key = "optim.groups";
    for (const char* other : {"optim.kind", "memory.offload"})
      key = what.starts_with(other) ? other : key;
    fail(Exit::usage, origin_of(loaded, key), ": ", what);
  }
}

/// Throws Exit::usage if memory.offload names "parameters" and the base of adapters is quantized.
void check_offloaded_base(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const std::string& dtype = adapters_of(c).dtype;
  if (!c.memory.offloads("parameters") || adapters_of(c).rank == 0) return;
  if (dtype != "int8" && dtype != "nf4") return;
  fail(Exit::usage, origin_of(loaded, "memory.offload"), ": memory.offload = \"", c.memory.offload,
       "\" is for parameters that are not quantized, and adapters.dtype = \"", dtype,
       "\"; set adapters.dtype to bf16, or leave the parameters in memory");
}

/// Returns whether the model is created with parameters that have no memory yet. begin() and load()
/// then allocate only the parameters that this process keeps.
bool begins_without_memory() {
  const auto& all = transforms();
  return world().size() > 1 &&
         std::none_of(all.begin(), all.end(), [](const Transform& t) { return t.uses_values; });
}

/// Makes the model of a run without adapters, on the CPU in float32.
std::unique_ptr<Model> make_initial_model(const LoadedConfig& loaded, const ModelSizes& sizes) {
  const ModelKind& kind = *find_model_kind(loaded.config.model.kind);
  if (begins_without_memory()) {
    const WithoutMemory guard;
    return kind.make(loaded.config.model.own, sizes);
  }
  auto model = kind.make(loaded.config.model.own, sizes);
  const auto saved = saved_tensors(*model);
  const auto write = initial_values(loaded, saved.size());
  for (const NamedParameter& p : saved) write(p);
  return model;
}

/// Makes the model on its device and applies the transforms. `matrices` is the dtype of trained
/// parameters with two or more dimensions.
std::unique_ptr<Model> make_transformed_model(const LoadedConfig& loaded, const ModelSizes& sizes,
                                              at::Device device, at::ScalarType matrices) {
  const RunConfig& config = loaded.config;
  auto model = loaded.base.empty() ? make_initial_model(loaded, sizes)
                                   : load_base(loaded.base, config, sizes, device);

  // Initial weights are drawn on the CPU in float32 and then moved, so that they are the same on
  // any device.
  if (device.is_cuda() || matrices != at::kFloat) {
    const MemoryScope scope(Memory::parameters);
    replace_parameters(*model, [&](const NamedParameter& p) {
      const at::Tensor& drawn = p.parameter.data();
      if (!is_trained(p.parameter)) return p.parameter;
      const at::ScalarType dtype = drawn.dim() >= 2 ? matrices : at::kFloat;
      const at::Tensor moved =
          has_memory(drawn)
              ? drawn.to(device, dtype)
              : tensor_without_memory(drawn.sizes(), at::TensorOptions(device).dtype(dtype));
      for (const at::Tensor& t : {drawn, moved}) release_pages(t);
      return Variable::parameter(moved, p.path);
    });
  }
  if (device.is_cuda())
    replace_buffers(*model, [&](const NamedBuffer& b) { return b.tensor.to(device); });

  apply_transforms(*model, {.config = config, .device = device, .matrices = matrices});
  check_recomputed_blocks(loaded, *model);
  return model;
}

}  // namespace

Session Session::make(const LoadedConfig& loaded, const Task& task, const ModelSizes& sizes) {
  Session s = make_without_values(loaded, task, sizes);
  s.begin(loaded);
  return s;
}

Session Session::make_without_values(const LoadedConfig& loaded, const Task& task,
                                     const ModelSizes& sizes) {
  const RunConfig& config = loaded.config;
  install_allocator();
  const std::string device_name = open_device(config.train.device);
  check_device(loaded, device_name);
  const int threads =
      config.train.threads > 0 ? static_cast<int>(config.train.threads) : default_threads();
  configure_backend(device_name, threads, config.amp.tf32);
  use_kernels(config.train.kernels == "auto");

  const at::Device device(device_name == "cuda" ? at::kCUDA : at::kCPU);
  const at::ScalarType compute = compute_dtype(config.amp);
  const at::ScalarType matrices = config.amp.master ? at::kFloat : matmul_dtype(compute);
  check_offloaded_base(loaded);
  check_positions(loaded, task);
  check_sequence(loaded);

  auto mapped = config.memory.offloads("parameters")
                    ? std::make_unique<MappedMemory>(scratch_folder(config))
                    : nullptr;
  std::optional<MapParameters> from_disk(mapped.get());
  auto model = make_transformed_model(loaded, sizes, device, matrices);
  const auto params = parameters_to_train(*model, config), saved = saved_tensors(*model);

  // By default, gradients have the matmul dtype only if no gradient of another micro-batch, or of
  // another part of the positions, is added to them. Each addition would round.
  const bool is_alone =
      config.train.grad_accum == 1 && world().context().size == 1 && !divides_sequence(config.dist);
  const bool low_grad = config.amp.grad == "low" || (config.amp.grad == "auto" && is_alone);
  make_working_copies(params, compute, config.amp.working_copies, low_grad);
  from_disk.reset();

  std::optional<uint64_t> rounding_seed;
  if (config.amp.rounding != "nearest") rounding_seed = static_cast<uint64_t>(config.train.seed);
  auto stage = make_stage(loaded, *model, sizes, params);
  auto layout = std::make_unique<ShardLayout>(
      make_layout(config, stage ? stage->local() : params, stage.get()));
  if (stage && divides_state_of(config)) stage->divide(layout->ranges(world().data().rank));
  Optimizer optimizer = make_optimizer(loaded, params, *layout, stage.get(), rounding_seed);

  std::vector<NamedBuffer> own_buffers = lathe::buffers(*model);
  RunTask run_task = make_run_task(loaded, task, sizes, device);
  const Task& own_task = run_task.own ? *run_task.own : task;

  Session s{.config = config,
            .run_task = std::move(run_task),
            .task = own_task,
            .sizes = sizes,
            .device_name = device_name,
            .device = device,
            .compute = {compute, config.amp.cache},
            .model = std::move(model),
            .params = params,
            .saved = saved,
            .buffers = std::move(own_buffers),
            .stage = std::move(stage),
            .layout = std::move(layout),
            .shards = nullptr,
            .optimizer = std::move(optimizer),
            .scaler = GradScaler::make(config.amp, device),
            .spikes = config.train.spike_sigma > 0
                          ? std::optional<SpikeGuard>(config.train.spike_sigma)
                          : std::nullopt,
            .low_grad = low_grad,
            .exchanged = {},
            .mapped = std::move(mapped)};
  s.config.train.threads = threads;
  if (config.dist.shard == "parameters" && world().data().size > 1)
    s.shards = std::make_unique<ParameterShards>(world(), s.local_params(), *s.layout);
  if (config.memory.offloads("activations")) {
    const auto window = static_cast<size_t>(1e6 * config.memory.offload_window_mb);
    if (!s.device.is_cuda()) {
      s.activations = std::make_unique<DiskOffloader>(scratch_folder(config), window);
    } else if (config.memory.offload_dir.empty()) {
      s.activations = std::make_unique<PinnedOffloader>(window);
    } else {
      fail(
          Exit::usage, origin_of(loaded, "memory.offload_dir"),
          ": memory.offload_dir has no effect on a GPU, whose activations go to the host's memory; "
          "leave the key out");
    }
  }
  return s;
}

bool Session::divides_state() const { return divides_state_of(config); }

double flops_per_unit(const RunConfig& config, const Model& model, const ModelSizes& sizes) {
  const double flops = model.flops_per_unit();
  const int64_t window = config.data.window;
  if (window == 0) return flops;

  // The formula assumes the model's full context. Correct the result for the length of a window.
  const MetaInit guard;
  const ModelKind& kind = *find_model_kind(config.model.kind);
  AnyConfig own = config.model.own;
  const double full = kind.make(own, sizes)->flops_per_unit();
  *own.find<int64_t>("block_size") = window;
  return flops - full + kind.make(own, sizes)->flops_per_unit();
}

std::string precision_text(const Session& s) {
  const AmpConfig& a = s.config.amp;
  std::string text =
      "matmuls in " + a.dtype + (a.tf32 ? " (fp32 ones in tf32)" : "") + ", parameters ";
  bool copies = false;
  at::ScalarType param = at::kFloat, grad = at::kFloat;
  for (const auto& p : s.params) {
    if (!is_linear_weight(p.role)) continue;
    const Precision& kept = p.parameter.leaf().precision;
    copies = copies || kept.low.defined();
    param = p.parameter.dtype();
    grad = kept.grad_dtype;
  }
  text += dtype_name(param) +
          (copies ? str(" with ", dtype_name(matmul_dtype(s.compute.dtype)), " copies") : "") +
          ", gradients " + dtype_name(grad);
  if (s.scaler)
    text += str(", ", a.scaler == "fixed" ? "fixed" : "dynamic", " loss scale ",
                format("%.10g", s.scaler->state().scale));
  if (const AdaptersConfig& adapted = adapters_of(s.config); adapted.rank > 0)
    text += ", frozen model in " + adapted.dtype;
  if (s.config.memory.saved != "none") text += ", activations saved as " + s.config.memory.saved;
  return text + ", checkpoints in " + dtype_name(save_dtype(s.config.checkpoint).value_or(param));
}

}  // namespace lathe
