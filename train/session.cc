#include "train/session.h"

#include "autograd/engine.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "train/checkpoint.h"

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

Session Session::make(const RunConfig& config) {
  install_allocator();
  const std::string device_name = open_device(config.train.device);
  const int threads = config.train.threads > 0 ? static_cast<int>(config.train.threads) : default_threads();
  set_up_compute(device_name, threads);
  const at::Device device(device_name == "cuda" ? at::kCUDA : at::kCPU);
  GPT model = make_gpt(config.model, static_cast<uint64_t>(config.train.seed));
  if (device.is_cuda()) move_to(model, device, at::kFloat);
  const auto params = parameters(model);
  const at::ScalarType compute = dtype_from_config(config.amp.dtype);
  const bool low_grad = config.amp.grad == "low" || (config.amp.grad == "auto" && config.train.grad_accum == 1);
  make_working_copies(params, compute, low_grad, config.model.tie_weights);
  Session s{config, device_name, device, compute, std::move(model), params, Optimizer(config.optim, params)};
  s.config.train.threads = threads;
  return s;
}

void Session::load(const fs::path& checkpoint, int64_t updates) {
  load_parameters(checkpoint, params);
  load_optimizer(checkpoint, optimizer);
  optimizer.set_updates(updates);
  refresh_working_copies(params);
}

at::Tensor run_micro_batch(const GPT& model, const Batch& batch, double divisor, at::ScalarType compute,
                           StepRandom random) {
  const MemoryScope memory(Memory::activations);
  const TrainingStep step(random);
  Variable loss;
  {
    const Autocast autocast(compute);
    loss = model.loss(batch.ids_BT, batch.targets_BT, divisor);
  }
  backward(loss);
  return loss.data();
}

std::optional<EvalResult> evaluate(const GPT& model, const TokenFile& tokens, Loader::Shape shape, int64_t batches,
                                   at::ScalarType compute, at::Device device, const std::function<bool()>& stop) {
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
