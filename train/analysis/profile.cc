// Implements the profile of training steps. It waits for a GPU after each op, which hides the
// overlap of ops. The options --kineto and --nvtx therefore run further steps without waiting. In
// these steps, core/named_range.h passes the names of ops to ATen's RecordFunction. Idle threads of
// OpenMP spin, so CPU time can't show that they are idle; the profile instead uses the log of
// core/thread_log.h.
#include "train/analysis/profile.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <regex>
#include <sstream>
#include <tuple>
#include <unordered_map>

#include "autograd/op.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "core/thread_log.h"
#include "core/timing.h"
#include "nn/module_call.h"
#include "train/analysis/machine.h"
#include "train/session/peak.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

using Phase = Span::Phase;

int64_t major_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_majflt;
}

int64_t bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0; }

/// Divides a step into spans at the events that ops report. The time for recording a span belongs
/// to no span. At the end of each span, the recorder waits for the GPU, so that the work on the GPU
/// counts in the span that launched it.
class Recorder {
 public:
  Recorder(Profile& profile, const Session& s, ThreadLog& log)
      : profile_(profile), device_(s.device_name), log_(log), start_(Clock::now()), last_(start_) {
    mode().flops = &flops_;
    mark();
  }

  /// Ends the span that began at the last mark(), or at the end of the previous span if that was
  /// later.
  void end_span(Phase phase, const std::string& op) { add({.phase = phase, .op = op}); }
  /// Excludes the time since the last span from all spans.
  void mark() {
    on_gpu() ? cuda_api().reset_memory_peak() : reset_memory_peaks();
    kept_ = activations(memory());
    flops_ = {};
    take_work();
    last_ = Clock::now();
  }

 private:
  bool on_gpu() const { return device_ == "cuda"; }
  /// Returns the memory in use. On a GPU, it is not divided into categories.
  MemoryStats memory() const {
    if (!on_gpu()) return memory_stats();
    MemoryStats m;
    m.total = cuda_api().memory_used();
    m.total_peak = cuda_api().memory_peak();
    return m;
  }
  int64_t activations(const MemoryStats& m) const {
    return on_gpu() ? m.total : m.used[static_cast<size_t>(Memory::activations)];
  }

  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  /// Records the work of threads since the last call. Returns the seconds that threads were idle
  /// between last_ and `now`, summed over the threads. Returns -1 if no loop ran.
  double take_work(Clock::time_point now = {}) {
    const auto [works, loops] = log_.take();
    // Outside of loops, only one thread works. In a loop, a thread is idle unless it recorded work.
    double idle = (profile_.threads - 1) * seconds(now - last_);
    for (const ThreadLog::Loop& loop : loops) idle += seconds(loop.end - loop.begin);
    for (const ThreadLog::Work& w : works) {
      profile_.work.push_back({.lane = std::string(w.what),
                               .thread = w.thread,
                               .begin = seconds(w.begin - start_),
                               .seconds = seconds(w.end - w.begin)});
      if (w.what == loop_work) idle -= seconds(w.end - w.begin);
    }

    return loops.empty() ? -1 : std::max(idle, 0.0);
  }

  void add(Span span) {
    synchronize(device_);
    const Clock::time_point now = Clock::now();
    const MemoryStats memory = this->memory();

    span.begin = seconds(last_ - start_);
    span.seconds = seconds(now - last_);
    span.idle = take_work(now);
    span.memory_peak = memory.total_peak;
    span.memory_after = memory.total;
    span.kept = activations(memory) - kept_;

    if (profile_.spans.empty() ||
        memory.total_peak > profile_.spans[profile_.peak_span].memory_peak) {
      profile_.peak_span = profile_.spans.size();
      profile_.at_peak = memory;
    }

    profile_.spans.push_back(std::move(span));
    mark();
  }

  void add_result(const OpResult& r) {
    Span span{.phase = mode().is_recomputing ? Phase::recompute : Phase::forward,
              .op = r.name,
              .flops = flops_.forward};
    if (const ModuleCall* call = ModuleCall::innermost()) span.module = call->path();
    for (const Variable& v : r.inputs) {
      span.bytes += bytes_of(v.data());
      span.inputs += (span.inputs.empty() ? "" : ", ") + describe(v.data());
    }
    for (const at::Tensor& t : r.outputs) span.bytes += bytes_of(t);
    if (r.node != nullptr && !(mode().is_recomputing && modules_.contains(r.node)))
      modules_[r.node] = span.module;
    add(std::move(span));
  }
  void add_backward(const BackwardResult& r) {
    Span span{.phase = Phase::backward, .op = r.node.name()};
    if (const auto found = modules_.find(&r.node); found != modules_.end())
      span.module = found->second;
    span.flops = r.node.backward_flops;
    for (const at::Tensor& t : r.dy) span.bytes += bytes_of(t);
    for (const at::Tensor& t : r.grads) span.bytes += bytes_of(t);
    add(std::move(span));
  }

  Profile& profile_;
  const std::string device_;
  ThreadLog& log_;
  Clock::time_point start_, last_;
  FlopCount flops_{};
  int64_t kept_ = 0;
  std::unordered_map<const Node*, std::string> modules_;
  const ObserveOps observe_{{
      .on_result = [this](const OpResult& r) { add_result(r); },
      .on_backward = [this](const BackwardResult& r) { add_backward(r); },
  }};
};

}  // namespace

Profile profile_steps(Session& s, const Data& data, int64_t first, int64_t count) {
  ThreadLog log;  // must outlive the loader, whose workers write to the log
  Loader loader = training_loader(s, data, 0);
  for (int64_t step = 0; step < first; ++step) run_step(s, loader, step);

  Profile p;
  p.threads = s.device.is_cuda() ? 0 : at::get_num_threads();
  p.workers = s.config.data.workers;

  const int64_t faults = major_faults();
  // Wait, so that GPU work of the unobserved steps does not count in the first span.
  synchronize(s.device_name);

  // On a GPU the host's threads have little to do, so they are not logged.
  const struct LogThreads {
    explicit LogThreads(ThreadLog* log) { ThreadLog::active() = log; }
    ~LogThreads() { ThreadLog::active() = nullptr; }
  } log_threads(s.device.is_cuda() ? nullptr : &log);
  Recorder recorder(p, s, log);

  for (int64_t step = first; step < first + count; ++step) {
    const auto begin = Clock::now();
    recorder.mark();

    bool any = false;
    const auto next = [&] {
      // Do not count the time between two micro-batches in any span.
      if (std::exchange(any, true)) recorder.mark();
      Batch batch = loader.next();
      recorder.end_span(Phase::data, "data");
      p.data_bytes += bytes_of(batch.inputs) + bytes_of(batch.targets);
      return batch;
    };

    run_step(s, next, step);
    recorder.end_span(Phase::optimizer, "optimizer");

    p.step_seconds.push_back(seconds_since(begin));
    p.memory_after_step.push_back(s.device.is_cuda() ? cuda_api().memory_used()
                                                     : memory_stats().total);
  }

  p.disk_reads = major_faults() - faults;
  return p;
}

Ceilings machine_ceilings(const Session& s) {
  const auto seconds_of = [&](auto&& work) {
    // Otherwise only the launch of the GPU's work would be measured.
    synchronize(s.device_name);
    const auto begin = Clock::now();
    work();
    synchronize(s.device_name);
    return seconds_since(begin);
  };

  const bool is_gpu = s.device.is_cuda();
  Ceilings c;
  if (is_gpu) {
    constexpr int64_t n = 8192;
    const auto dtype = s.compute.dtype == at::kFloat8_e4m3fn ? at::kBFloat16 : s.compute.dtype;
    const at::Tensor a = at::rand({n, n}, at::TensorOptions(s.device)).to(dtype);
    at::Tensor b = at::empty_like(a);
    // Take the best of five measurements, since the first matmuls also load and choose a kernel.
    for (int i = 0; i < 5; ++i)
      c.flops = std::max(c.flops, 2.0 * n * n * n / seconds_of([&] { at::mm_out(b, a, a); }));
  } else {
    const int threads = static_cast<int>(s.config.train.threads);
    const auto known = known_peak(s.device_name, threads, s.compute.dtype);
    c.flops = known ? known->rate : measure_peak(threads, s.compute.dtype).rate;
  }

  // The tensors are far larger than the caches, so that the copy measures the memory bandwidth.
  const at::Tensor from = at::ones({is_gpu ? 256 << 20 : 16 << 20}, s.device),
                   to = at::empty_like(from);
  for (int i = 0; i < 5; ++i) {
    const double seconds = seconds_of([&] { to.copy_(from); });
    c.bytes_per_second =
        std::max(c.bytes_per_second, 2 * static_cast<double>(from.nbytes()) / seconds);
  }
  return c;
}

}  // namespace lathe
