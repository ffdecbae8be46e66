#include "train/run/session.h"

#include "amp/amp.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "nn/init.h"
#include "train/transforms/adapters.h"

namespace lathe {

RunData RunData::open(LoadedConfig& loaded) {
  RunConfig& c = loaded.config;
  const fs::path folder = c.data.dir;
  auto manifest = read_manifest(folder);
  TokenFile train(folder, "train", manifest);
  std::optional<TokenFile> val;
  if (has_split(folder, "val", manifest)) val.emplace(folder, "val", manifest);
  if (manifest) {
    if (c.model.vocab_size == 0) c.model.vocab_size = manifest->vocab_size;
    if (c.model.vocab_size < manifest->vocab_size) {
      fail(Exit::usage, origin_of(loaded, "model.vocab_size"), ": model.vocab_size = ", c.model.vocab_size,
           " is smaller than the ", manifest->vocab_size, " tokens of ", folder.string(),
           "; leave it out or make it larger");
    }
  } else if (c.model.vocab_size == 0) {
    fail(Exit::usage, origin_of(loaded, "model.vocab_size"), ": ", folder.string(),
         " has no manifest.json, so model.vocab_size must be given");
  }
  if (train.size() <= c.model.block_size) {
    fail(Exit::data, folder.string(), " has ", train.size(),
         " training tokens, too few for windows of model.block_size = ", c.model.block_size,
         " and one; use more text or a shorter context");
  }
  if (c.train.eval_interval > 0 && (!val || val->size() < 2)) {
    fail(Exit::data, folder.string(),
         " has no validation tokens; prepare the data with --val 0.1 or set train.eval_interval = 0");
  }
  train.check_ids(c.model.vocab_size);
  if (val) val->check_ids(c.model.vocab_size);
  return {std::move(manifest), std::move(train), std::move(val)};
}

std::string RunData::hash() const { return train.fingerprint() + (val ? "-" + val->fingerprint() : ""); }

bool RunData::matches(const std::string& saved) const {
  const auto between = saved.find('-');
  if (!train.matches(saved.substr(0, between))) return false;
  return between == std::string::npos ? !val : val && val->matches(saved.substr(between + 1));
}

namespace {

void check_device(const LoadedConfig& loaded, const std::string& device) {
  const AmpConfig& amp = loaded.config.amp;
  const int capability = device == "cuda" ? cuda_api().compute_capability() : 0;
  if (device == "cuda" && capability < 80) {
    fail(Exit::usage, origin_of(loaded, "train.device"), ": ", device_model(device), " has compute capability ",
         capability / 10, ".", capability % 10, " and 8.0 is needed; set train.device = \"cpu\"");
  }
  if (amp.tf32 && device == "cpu") {
    fail(Exit::usage, origin_of(loaded, "amp.tf32"), ": amp.tf32 needs an NVIDIA card, and this run is on ",
         device_model(device), "; leave amp.tf32 out");
  }
}

}  // namespace

Session Session::make(const LoadedConfig& loaded) {
  const RunConfig& config = loaded.config;
  install_allocator();
  const std::string device_name = open_device(config.train.device);
  check_device(loaded, device_name);
  const int threads = config.train.threads > 0 ? static_cast<int>(config.train.threads) : default_threads();
  set_up_compute(device_name, threads, config.amp.tf32);
  use_kernels(config.train.kernels == "auto");
  const at::Device device(device_name == "cuda" ? at::kCUDA : at::kCPU);
  const auto seed = static_cast<uint64_t>(config.train.seed);
  const at::ScalarType compute = compute_dtype(config.amp), low = matmul_dtype(compute);
  const bool adapters = config.model.lora > 0;
  GPT model = adapters ? load_base(loaded.base, config, device) : make_gpt(config.model, seed);
  if (adapters) initialize(trained_parameters(model), init_from_config(config.model.init), config.model.n_layer, seed);
  if (device.is_cuda() || !config.amp.master) {
    const MemoryScope scope(Memory::parameters);
    replace_parameters(model, [&](const NamedParameter& p) {
      if (!is_trained(p.parameter)) return p.parameter;
      const bool small = !config.amp.master && p.parameter.dim() >= 2;
      return Variable::parameter(p.parameter.data().to(device, small ? low : at::kFloat), p.path);
    });
  }
  const auto params = trained_parameters(model);
  make_fp8_layers(params, config.amp);
  const bool low_grad = config.amp.grad == "low" || (config.amp.grad == "auto" && config.train.grad_accum == 1);
  make_working_copies(params, compute, config.amp.working_copies, low_grad);
  const bool stochastic = config.amp.rounding != "nearest";
  Session s{config,
            device_name,
            device,
            {compute, config.amp.cache},
            std::move(model),
            params,
            Optimizer(config.optim, params, stochastic ? std::optional(seed) : std::nullopt),
            GradScaler::make(config.amp, device),
            config.train.spike_sigma > 0 ? std::optional<SpikeGuard>(config.train.spike_sigma) : std::nullopt,
            low_grad};
  s.config.train.threads = threads;
  return s;
}

void Session::load(const fs::path& checkpoint, const RunState& state) {
  load_parameters(checkpoint, params);
  load_optimizer(checkpoint, optimizer);
  optimizer.set_updates(state.updates);
  if (scaler && state.scaler) scaler->load(*state.scaler);
  if (spikes && state.spikes) spikes->load(*state.spikes);
  refresh_working_copies(params);
}

at::Tensor run_micro_batch(const GPT& model, const Batch& batch, double divisor, Compute compute, StepRandom random,
                           const at::Tensor& loss_scale) {
  const MemoryScope memory(Memory::activations);
  const TrainingStep step(random);
  Variable loss;
  {
    const Autocast autocast(compute);
    loss = model.loss(batch.ids_BT, batch.targets_BT, divisor);
  }
  backward(loss, loss_scale);
  return loss.data();
}

std::string precision_text(const Session& s) {
  const AmpConfig& a = s.config.amp;
  std::string text = "matmuls in " + a.dtype + (a.tf32 ? " (fp32 ones in tf32)" : "") + ", parameters ";
  bool copies = false;
  at::ScalarType param = at::kFloat, grad = at::kFloat;
  for (const auto& p : s.params) {
    if (!is_linear_weight(p.role)) continue;
    const Precision& kept = p.parameter.leaf().precision;
    copies = copies || kept.low.defined();
    param = p.parameter.dtype();
    grad = kept.grad_dtype;
  }
  text += dtype_name(param) + (copies ? str(" with ", dtype_name(matmul_dtype(s.compute.dtype)), " copies") : "") +
          ", gradients " + dtype_name(grad);
  if (s.scaler)
    text +=
        str(", ", a.scaler == "fixed" ? "fixed" : "dynamic", " loss scale ", format("%.10g", s.scaler->state().scale));
  if (s.config.model.lora > 0) text += ", frozen model in " + s.config.model.lora_dtype;
  return text + ", saved as " + dtype_name(save_dtype(s.config.checkpoint).value_or(param));
}

std::optional<EvalResult> evaluate(const GPT& model, const TokenFile& tokens, Loader::Shape shape, int64_t batches,
                                   Compute compute, at::Device device, const std::function<bool()>& stop) {
  const NoGrad no_grad;
  const Autocast autocast(compute);
  const MemoryScope memory(Memory::activations);
  EvalWindows windows(tokens, shape, batches, device);
  EvalResult result;
  double sum = 0;
  for (Batch batch; windows.next(batch);) {
    if (stop && stop()) return std::nullopt;
    sum += model.loss(batch.ids_BT, batch.targets_BT, 1).item();
    result.tokens += batch.targets_BT.numel();
  }
  result.loss = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace lathe
