#include "train/verbs/plan.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>

#include "autograd/node.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "core/mode.h"
#include "core/rng.h"
#include "data/loader.h"
#include "train/formats/source.h"
#include "train/run/peak.h"
#include "train/run/session.h"
#include "train/transforms/adapters.h"
#include "train/verbs/verbs.h"

namespace lathe {
namespace {

/// A micro-batch to measure with: random tokens, or the data's first examples.
Batch some_batch(const Session& s, const Data* data) {
  const BatchSizes sizes = batch_sizes(s.config);
  if (sizes.vocab_size == 0) return draw_batches(*data, sizes, 1, 0, 1, s.device).front();
  const at::Tensor ids = at::zeros({sizes.batch_size, sizes.block_size}, at::kLong);
  auto* p = ids.mutable_data_ptr<int64_t>();
  const RngKey key = make_key(1, hash_name("plan"));
  for (int64_t i = 0; i < ids.numel(); ++i) {
    p[i] = philox(counter(static_cast<uint64_t>(i), 0), key)[0] % static_cast<uint64_t>(sizes.vocab_size);
  }
  return {ids.to(s.device), ids.roll(-1, 1).to(s.device)};
}

void run_batch(const Session& s, const Batch& batch, double divisor, Compute compute) {
  run_micro_batch(s, batch, divisor, {}, compute);
}

/// What a plan is made for; token data need not be there where model.vocab_size says what it would.
RunData open_for_plan(LoadedConfig& loaded) {
  RunConfig& c = loaded.config;
  c.train.eval_interval = 0;
  const bool tokens = find_model_kind(c.model.kind)->models_tokens();
  if (fs::is_directory(c.data.dir) || !tokens) return RunData::open(loaded);
  if (batch_sizes(c).vocab_size == 0) {
    fail(Exit::usage, "model.vocab_size is 0 and there is no data in ", c.data.dir,
         " to take it from; give one of them");
  }
  return {nullptr, &task_of(loaded, {.task = "language"}), {}};
}

std::string human(double bytes) {
  const char* units[]{"B", "kB", "MB", "GB", "TB"};
  int u = 0;
  while (bytes >= 1000 && u < 4) bytes /= 1000, ++u;
  return u == 0 ? format("%.0f %s", bytes, units[u]) : format("%.1f %s", bytes, units[u]);
}

/// One line: what weights in the matmul dtype cost when they are kept, cached, or cast anew. Leaves the session so.
std::string weight_line(Session& s, const Batch& batch, const char* what, bool copies, bool cache) {
  const AmpConfig& own = s.config.amp;
  const bool is_own = own.working_copies == copies && (copies || own.cache == cache);
  zero_grad(*s.model);
  for (const auto& p : s.params) p.parameter.leaf().precision.low.reset();
  make_working_copies(s.params, s.compute.dtype, copies, s.low_grad);
  const double kept = static_cast<double>(memory_stats().used[static_cast<size_t>(Memory::parameters)]);
  reset_memory_peaks();
  run_batch(s, batch, 1, {s.compute.dtype, cache});
  s.optimizer.step(0);
  const MemoryStats peaks = memory_stats();
  return str(what, human(kept), " of parameters kept, ",
             human(static_cast<double>(peaks.peak[static_cast<size_t>(Memory::casts)])), " of casts, ",
             human(static_cast<double>(peaks.total_peak)), " in all at the highest", is_own ? " (this config)" : "",
             "\n");
}

}  // namespace

FlopCount count_flops(LoadedConfig loaded) {
  const RunData data = open_for_plan(loaded);
  Session s = Session::make(loaded, *data.task, data.sizes);
  FlopCount count;
  const CountFlops counting(count);
  run_batch(s, some_batch(s, data.data.get()), 1, s.compute);
  return count;
}

std::string plan(LoadedConfig loaded) {
  RunConfig& c = loaded.config;
  adopt_source(loaded);
  adopt_base(loaded);
  const RunData data = open_for_plan(loaded);
  Session s = Session::make(loaded, *data.task, data.sizes);
  const auto static_bytes = memory_stats();
  const Batch batch = some_batch(s, data.data.get());
  reset_memory_peaks();

  FlopCount flops;
  std::vector<double> seconds;
  const double units_micro = static_cast<double>(units_of_micro_batch(c));
  for (int i = 0; i < 4; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    flops = {};
    {
      const CountFlops counting(flops);
      run_batch(s, batch, units_micro, s.compute);
    }
    s.optimizer.step(0);
    zero_grad(*s.model);
    synchronize(s.device_name);
    const double t = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (i > 0) seconds.push_back(t);
    if (i > 0 && t > 20) break;  // a large model: one timed step is enough
  }
  std::sort(seconds.begin(), seconds.end());
  const double step_s = seconds[seconds.size() / 2] * static_cast<double>(c.train.grad_accum);
  const double step_flops = flops.matmul() * static_cast<double>(c.train.grad_accum);
  const auto peaks = memory_stats();
  const auto bytes = [](const MemoryStats& m, Memory category) {
    return static_cast<double>(m.used[static_cast<size_t>(category)]);
  };
  const auto peak = [&](Memory category) { return static_cast<double>(peaks.peak[static_cast<size_t>(category)]); };
  const double n = static_cast<double>(count(s.params));
  const auto checkpoint = static_cast<double>(checkpoint_bytes(s.params, s.optimizer, save_dtype(c.checkpoint)));
  const double held = c.checkpoint.async_save ? checkpoint : 0;
  const bool copies = std::any_of(s.params.begin(), s.params.end(),
                                  [](const auto& p) { return p.parameter.leaf().precision.low.defined(); });
  std::string weights;
  if (c.amp.dtype != "fp32" && c.amp.master && adapters_of(c).rank == 0 && !s.device.is_cuda()) {
    weights += weight_line(s, batch, "  kept as working copies  ", true, true);
    weights += weight_line(s, batch, "  cast at use, cached     ", false, true);
    weights += weight_line(s, batch, "  cast at each use        ", false, false);
  }

  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& value) {
    out << name << std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') << value << "\n";
  };
  const auto all = static_cast<double>(count(parameters(*s.model)));
  line("parameters",
       format("%.0f (%.2f million)", all, all / 1e6) + (n < all ? format(", %.0f of them trained", n) : ""));
  if (s.device.is_cuda()) {
    line("memory, card", human(static_cast<double>(cuda_api().memory_peak())) + " at the highest");
    if (held > 0) line("memory, host", human(held) + " for the checkpoint that is written in the background");
  } else {
    line("memory: parameters",
         human(bytes(static_bytes, Memory::parameters)) + (copies ? " (with working copies)" : ""));
    if (const double casts = peak(Memory::casts); casts > 0)
      line("memory: weight casts", human(casts) + " at the highest");
    line("memory: optimizer", human(bytes(static_bytes, Memory::optimizer)));
    line("memory: gradients", human(peak(Memory::gradients)));
    line("memory: activations", human(peak(Memory::activations)) + " at the highest");
    if (held > 0) line("memory: checkpoints", human(held) + ", the copy that is written in the background");
    line("memory: all tensors",
         human(static_cast<double>(peaks.total_peak) + held) + " at the highest, beside about 0.2 GB for the program");
  }
  if (!weights.empty()) out << "weights in " << c.amp.dtype << ", a step of one micro-batch:\n" << weights;
  line("FLOPs a step", format("%.3g in matmuls (%.3g by the 6N formula), %.3g in all", step_flops,
                              s.model->flops_per_unit() * units_micro * static_cast<double>(c.train.grad_accum),
                              flops.total() * static_cast<double>(c.train.grad_accum)));
  line("time of a step", format("%.1f ms (%.0f %s/s)", 1e3 * step_s,
                                units_micro * static_cast<double>(c.train.grad_accum) / step_s, s.task.unit().c_str()));
  if (const auto ceiling = known_peak(s.device_name, static_cast<int>(s.config.train.threads), s.compute.dtype)) {
    line("mfu", format("%.0f%%", 100 * step_flops / step_s / ceiling->rate) +
                    (ceiling->young() ? " (of a ceiling measured less than three times)" : ""));
  }
  line("time of the run",
       format("%.1f minutes for %lld steps, evaluation not counted", step_s * static_cast<double>(c.train.steps) / 60,
              static_cast<long long>(c.train.steps)));
  line("disk", human(checkpoint) + " a checkpoint, " +
                   human(checkpoint * (static_cast<double>(c.checkpoint.keep) + 1)) + " at the most (" +
                   std::to_string(c.checkpoint.keep) + " kept and one being written)");
  return out.str();
}

Verb plan_verb() {
  return {"plan",
          "CONFIG [--section.key=value ...]",
          "what a run will need: memory, FLOPs, time, disk",
          "plan configs/gpt2_124m.toml --train.batch_size=4",
          {},
          true,
          1,
          1,
          [](const Arguments& a) {
            std::cout << plan(load_config_argument(a)) << std::flush;
            return Exit::done;
          }};
}

}  // namespace lathe
