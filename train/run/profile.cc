// Waiting for each op hides overlap on a GPU, so --kineto and --nvtx run further steps without
// waiting; names reach ATen's RecordFunction through core/named_range.h. CPU clocks cannot show
// idle threads, because OpenMP's threads spin while they wait.
#include "train/run/profile.h"

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
#include "train/run/machine.h"
#include "train/run/peak.h"
#include "train/run/stepper.h"

namespace lathe {
namespace {

using Phase = Span::Phase;

int64_t major_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_majflt;
}

int64_t bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0; }

/// Cuts a step into spans at the events that ops report. The time that it takes to record a span
/// belongs to none. It waits for a GPU at the end of each span, so that the GPU's work is in the
/// span that launched it.
class Recorder {
 public:
  Recorder(Profile& profile, const Session& s, ThreadLog& log)
      : profile_(profile), device_(s.device_name), log_(log), start_(Clock::now()), last_(start_) {
    mode().flops = &flops_;
    mark();
  }

  /// Ends a span, which began where the previous one ended.
  void end_span(Phase phase, const std::string& op) { add({.phase = phase, .op = op}); }
  /// Discards the time that has passed since the last span.
  void mark() {
    on_card() ? cuda_api().reset_memory_peak() : reset_memory_peaks();
    kept_ = activations(memory());
    flops_ = {};
    take_work();
    last_ = Clock::now();
  }

 private:
  bool on_card() const { return device_ == "cuda"; }
  /// Returns the memory in use; without categories on a GPU.
  MemoryStats memory() const {
    if (!on_card()) return memory_stats();
    MemoryStats m;
    m.total = cuda_api().memory_used();
    m.total_peak = cuda_api().memory_peak();
    return m;
  }
  int64_t activations(const MemoryStats& m) const {
    return on_card() ? m.total : m.used[static_cast<size_t>(Memory::activations)];
  }

  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  /// Records the work of threads since the last call. Returns the seconds that threads of loops
  /// were idle from last_ until `now`, or -1 if there was no loop.
  double take_work(Clock::time_point now = {}) {
    const auto [works, loops] = log_.take();
    // Outside of loops a single thread works. In a loop, a thread is idle unless it recorded work.
    double idle = (profile_.threads - 1) * seconds(now - last_);
    for (const ThreadLog::Loop& loop : loops) idle += seconds(loop.end - loop.begin);
    for (const ThreadLog::Work& w : works) {
      profile_.work.push_back(
          {std::string(w.what), w.thread, seconds(w.begin - start_), seconds(w.end - w.begin)});
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

/// Returns "blocks.*.mlp" for "blocks.3.mlp".
std::string any_block(const std::string& module) {
  static const std::regex number(R"(\.\d+(?=\.|$))");
  return std::regex_replace(module, number, ".*");
}

/// Spans that share a row of the table: the same op of the same module in the same phase, in any
/// block.
struct Row {
  Phase phase;
  std::string op, module;
  double seconds = 0;
  Flops flops{};
  int64_t bytes = 0, count = 0;
  double idle = 0, seconds_of_loops = 0;  ///< the latter over spans whose idle time is known

  /// Returns "12%" of the threads' time; "" where nothing is known.
  std::string idle_text(int threads) const {
    return seconds_of_loops > 0 ? format("%.0f%%", 100 * idle / (seconds_of_loops * threads)) : "";
  }
};

/// Returns the rows, the costliest first.
std::vector<Row> rows_of(const Profile& p) {
  std::map<std::tuple<Phase, std::string, std::string>, Row> rows;
  for (const Span& span : p.spans) {
    const std::string module = any_block(span.module);
    Row& row = rows.try_emplace({span.phase, span.op, module}, Row{span.phase, span.op, module})
                   .first->second;
    row.seconds += span.seconds, row.flops += span.flops, row.bytes += span.bytes, ++row.count;
    if (span.idle >= 0) row.idle += span.idle, row.seconds_of_loops += span.seconds;
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return sorted;
}

/// Returns what each module saved for backward, the largest first.
std::vector<std::pair<std::string, int64_t>> kept_by_module(const Profile& p) {
  std::map<std::string, int64_t> kept;
  for (const Span& span : p.spans) {
    if (span.phase == Phase::forward && span.kept > 0) kept[any_block(span.module)] += span.kept;
  }
  std::vector<std::pair<std::string, int64_t>> sorted(kept.begin(), kept.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

/// Returns the op where memory is highest, as "linear_gelu of blocks.1.mlp, forward".
std::string peak_place(const Profile& p) {
  const Span& top = p.spans[p.peak_span];
  return top.op + (top.module.empty() ? "" : " of " + top.module) + ", " + phase_name(top.phase);
}

/// Seconds of spans by what limits them.
struct Limits {
  double compute = 0, memory = 0, data = 0, overhead = 0;
};

Limits limits_of(const Profile& p, const Ceilings& ceilings) {
  Limits limits;
  for (const Span& span : p.spans) {
    if (span.phase == Phase::data || span.phase == Phase::optimizer) {
      (span.phase == Phase::data ? limits.data : limits.memory) += span.seconds;
      continue;
    }

    // The least time that its matrix products and its tensors can take; the remainder is overhead.
    const double by_flops = span.flops.matmul / ceilings.flops,
                 by_bytes = static_cast<double>(span.bytes) / ceilings.bytes_per_second;
    const double least = std::min(span.seconds, std::max(by_flops, by_bytes));

    // Within a factor of three of this time, the ceiling limits the span; above it, the work of
    // starting the span does.
    const double own = 3 * least >= span.seconds ? span.seconds : least;
    (by_flops >= by_bytes ? limits.compute : limits.memory) += own;
    limits.overhead += span.seconds - own;
  }
  return limits;
}

}  // namespace

const char* phase_name(Phase phase) {
  static constexpr const char* names[]{"data", "forward", "recompute", "backward", "optimizer"};
  return names[static_cast<size_t>(phase)];
}

Profile profile_steps(Session& s, const Data& data, int64_t first, int64_t count) {
  ThreadLog log;  // outlives the loader, whose workers write to it
  Loader loader = training_loader(s, data, 0);
  for (int64_t step = 0; step < first; ++step) run_step(s, loader, step);

  Profile p;
  p.threads = s.device.is_cuda() ? 0 : at::get_num_threads();
  p.workers = s.config.data.workers;

  const int64_t faults = major_faults();
  // Work of the unobserved steps must not run into the first span.
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
      // What runs between micro-batches belongs to no span.
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
    // Without these waits only the launch of a GPU's work would be timed.
    synchronize(s.device_name);
    const auto begin = Clock::now();
    work();
    synchronize(s.device_name);
    return seconds_since(begin);
  };

  const bool card = s.device.is_cuda();
  Ceilings c;
  if (card) {
    constexpr int64_t n = 8192;
    const auto dtype = s.compute.dtype == at::kFloat8_e4m3fn ? at::kBFloat16 : s.compute.dtype;
    const at::Tensor a = at::rand({n, n}, at::TensorOptions(s.device)).to(dtype);
    at::Tensor b = at::empty_like(a);
    // The best of five, since the first products also load and choose a kernel.
    for (int i = 0; i < 5; ++i)
      c.flops = std::max(c.flops, 2.0 * n * n * n / seconds_of([&] { at::mm_out(b, a, a); }));
  } else {
    const int threads = static_cast<int>(s.config.train.threads);
    const auto known = known_peak(s.device_name, threads, s.compute.dtype);
    c.flops = known ? known->rate : measure_peak(threads, s.compute.dtype).rate;
  }

  // Tensors that are far larger than the caches, so that the copy measures memory.
  const at::Tensor from = at::ones({card ? 256 << 20 : 16 << 20}, s.device),
                   to = at::empty_like(from);
  for (int i = 0; i < 5; ++i) {
    const double seconds = seconds_of([&] { to.copy_(from); });
    c.bytes_per_second =
        std::max(c.bytes_per_second, 2 * static_cast<double>(from.nbytes()) / seconds);
  }
  return c;
}

std::string profile_text(const Profile& p, const Ceilings& ceilings, const std::string& unit,
                         double units_of_step) {
  double total = 0, phases[5] = {}, matmul = 0;
  for (const Span& span : p.spans) {
    total += span.seconds;
    phases[static_cast<size_t>(span.phase)] += span.seconds;
    matmul += span.flops.matmul;
  }

  const auto steps = static_cast<double>(p.step_seconds.size());
  const double middle = median(p.step_seconds);

  std::ostringstream out;
  out << format("%.0f steps, %.2f ms each (median), %.0f %s/s; ", steps, 1e3 * middle,
                units_of_step / middle, unit.c_str())
      << format("%.0f%% of the matmul ceiling (%.0f GFLOP/s), copies reach %.1f GB/s\n",
                100 * matmul / total / ceilings.flops, ceilings.flops / 1e9,
                ceilings.bytes_per_second / 1e9);

  for (size_t i = 0; i < 5; ++i) {
    if (phases[i] > 0)
      out << format("  %s %.1f%%", phase_name(static_cast<Phase>(i)), 100 * phases[i] / total);
  }

  // Idle threads are only known in Lathe's own loops, so the share of those is printed too.
  const std::vector<Row> costly = rows_of(p);
  Row all{};
  for (const Row& row : costly) all.idle += row.idle, all.seconds_of_loops += row.seconds_of_loops;
  if (const std::string idle = all.idle_text(p.threads); !idle.empty())
    out << "; threads without work " << idle
        << format(" of the %.0f%% that our loops take", 100 * all.seconds_of_loops / total);
  out << "\n\n";

  // Calls and times are per step; rates are means over all spans of a row.
  out << format("%-10s%-24s%-28s%8s%9s%7s%12s%10s%9s%7s\n", "", "op", "module", "calls", "ms",
                "share", "GFLOP/s", "of peak", "GB/s", "idle");
  for (size_t i = 0; i < std::min<size_t>(costly.size(), 25); ++i) {
    const Row& row = costly[i];
    // The rate is that of all FLOPs; only those of matmuls count against the matmul ceiling.
    const double flops = row.flops.matmul + row.flops.other;
    out << format("%-10s%-24s%-28s%8.0f%9.3f%6.1f%%%12.3g%9.0f%%%9.2f%7s\n", phase_name(row.phase),
                  row.op.c_str(), row.module.c_str(), static_cast<double>(row.count) / steps,
                  1e3 * row.seconds / steps, 100 * row.seconds / total, flops / row.seconds / 1e9,
                  100 * row.flops.matmul / row.seconds / ceilings.flops,
                  static_cast<double>(row.bytes) / row.seconds / 1e9,
                  row.idle_text(p.threads).c_str());
  }

  const Limits limits = limits_of(p, ceilings);
  const std::pair<const char*, double> named[]{
      {"products of matrices (compute)", limits.compute},
      {"reading and writing tensors (memory)", limits.memory},
      {"waiting for data", limits.data},
      {"the work around small ops (overhead)", limits.overhead}};

  const auto& most = *std::max_element(std::begin(named), std::end(named),
                                       [](auto& a, auto& b) { return a.second < b.second; });

  out << "\nA step is limited most by " << most.first
      << format(", %.0f%% of its time (", 100 * most.second / total)
      << format("compute %.0f%%, memory %.0f%%, data %.0f%%, overhead %.0f%%",
                100 * limits.compute / total, 100 * limits.memory / total,
                100 * limits.data / total, 100 * limits.overhead / total)
      << "). The three largest costs:";

  for (size_t i = 0; i < std::min<size_t>(costly.size(), 3); ++i) {
    const Row& row = costly[i];
    out << (i > 0 ? "; " : " ") << row.op << (row.module.empty() ? "" : " in " + row.module) << ", "
        << phase_name(row.phase) << format(" (%.0f%%)", 100 * row.seconds / total);
  }
  out << ".\n\n";

  const double waits = phases[0] / total;
  out << format(
      "Data: %.3g MB/s of batches, %.1f%% of the time waited for, %lld pages read from disk; ",
      static_cast<double>(p.data_bytes) / total / 1e6, 100 * waits,
      static_cast<long long>(p.disk_reads));

  // More workers do not help a slow disk, which page faults reveal.
  if (waits < 0.05)
    out << "data.workers = " << p.workers << " is enough.\n";
  else if (p.disk_reads > 0)
    out << "the disk is what limits: a larger data.prefetch, or data that is in memory.\n";
  else
    out << "more data.workers than " << p.workers << " would help.\n";

  out << "Memory is highest in " << peak_place(p) << ": "
      << format("%.1f MB of tensors\n ",
                static_cast<double>(p.spans[p.peak_span].memory_peak) / 1e6);

  for (size_t i = 0; i < memory_names.size(); ++i) {
    if (p.at_peak.used[i] > 0)
      out << "  " << memory_names[i]
          << format(" %.1f MB", static_cast<double>(p.at_peak.used[i]) / 1e6);
  }

  out << "\nKept for backward, of one step:\n";
  const auto owners = kept_by_module(p);
  for (size_t i = 0; i < std::min<size_t>(owners.size(), 10); ++i) {
    out << format("  %-36s%10.2f MB\n",
                  owners[i].first.empty() ? "(outside of modules)" : owners[i].first.c_str(),
                  static_cast<double>(owners[i].second) / steps / 1e6);
  }

  // Memory must grow at both ends, so that one larger step at the start or the end is not a leak.
  const auto& after = p.memory_after_step;
  if (after.size() > 2 && after.back() > after[1] && after[after.size() - 2] > after[0])
    out << format("LEAK: tensors grow by %.1f kB a step\n",
                  static_cast<double>(after.back() - after.front()) /
                      static_cast<double>(after.size() - 1) / 1e3);
  return out.str();
}

std::string profile_memory(const Profile& p) {
  std::vector<std::pair<std::string, int64_t>> categories;
  for (size_t i = 0; i < memory_names.size(); ++i) {
    if (p.at_peak.used[i] > 0) categories.emplace_back(memory_names[i], p.at_peak.used[i]);
  }
  std::stable_sort(categories.begin(), categories.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });

  // What is kept adds up over all profiled steps; the report shows one.
  auto kept = kept_by_module(p);
  for (auto& [module, bytes] : kept) {
    if (module.empty()) module = "(outside of modules)";
    bytes /= std::ssize(p.step_seconds);
  }

  // The timeline shows the first step only. Memory peaks within a span, so each one has two points.
  Json timeline = Json::array();
  for (const Span& s : p.spans) {
    if (s.begin >= p.step_seconds.front()) break;
    timeline.push_back({1e3 * s.begin, s.memory_peak});
    timeline.push_back({1e3 * (s.begin + s.seconds), s.memory_after});
  }

  return json_text(Json{{"at", peak_place(p)},
                        {"bytes", p.spans[p.peak_span].memory_peak},
                        {"categories", categories},
                        {"kept", kept},
                        {"timeline", timeline}}) +
         "\n";
}

}  // namespace lathe
