#include "train/analysis/trace.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <map>
#include <set>

#include "core/device.h"
#include "core/error.h"
#include "core/io/json.h"
#include "train/step/stepper.h"

namespace torch::autograd::profiler {
// Declare this function here, because its header includes a header that LibTorch does not ship.
void addMetadataJson(const std::string& key, const std::string& value);
}  // namespace torch::autograd::profiler

namespace lathe {
namespace {

namespace torch_profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerState;

/// Runs `count` steps, beginning with step `first`, under LibTorch's profiler. Returns the
/// profiler's result.
std::unique_ptr<torch_profiler::ProfilerResult> run_observed(Session& s, const Data& data,
                                                             int64_t first, int64_t count,
                                                             ProfilerState state) {
  Loader loader = training_loader(s, data, first);
  const torch::profiler::impl::ProfilerConfig config(state);

  std::set<ActivityType> activities{ActivityType::CPU};
  if (s.device.is_cuda())
    activities.insert(ActivityType::CUDA);
  else
    setenv("KINETO_LOG_LEVEL", "5", 0);  // otherwise, Kineto reports a missing GPU as an error

  synchronize(s.device_name);
  if (state == ProfilerState::KINETO) torch_profiler::prepareProfiler(config, activities);
  torch_profiler::enableProfiler(config, activities,
                                 {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});

  {
    const ModeGuard guard;
    // Names of modules and ops reach the profiler as ranges.
    mode().ranges = true;
    for (int64_t step = first; step < first + count; ++step) run_step(s, loader, step);
  }

  synchronize(s.device_name);
  if (state == ProfilerState::KINETO)
    // This writes kineto_mark into the trace.
    torch_profiler::addMetadataJson("program", "\"lathe\"");
  return torch_profiler::disableProfiler();
}

}  // namespace

std::string profile_trace(const Profile& p) {
  Json events = Json::array();
  const auto name = [&](const char* of, int thread, const std::string& text) {
    events.push_back(
        {{"name", of}, {"ph", "M"}, {"pid", 1}, {"tid", thread}, {"args", {{"name", text}}}});
  };

  name("process_name", 0, "lathe");
  // Thread ids in the trace: steps have 1, and the other threads have the ids after it.
  constexpr int steps = 1;
  name("thread_name", steps, "steps");

  for (const Span& s : p.spans) {
    Json arguments{{"module", s.module},
                   {"bytes", s.bytes},
                   {"matmul_flops", s.flops.matmul},
                   {"other_flops", s.flops.other}};
    if (!s.inputs.empty()) arguments["inputs"] = s.inputs;
    if (s.idle >= 0) arguments["idle_us"] = 1e6 * s.idle;

    // Times are in microseconds. An event of phase X is a span. An event of phase C sets a counter.
    events.push_back({{"name", s.op},
                      {"cat", phase_name(s.phase)},
                      {"ph", "X"},
                      {"ts", 1e6 * s.begin},
                      {"dur", 1e6 * s.seconds},
                      {"pid", 1},
                      {"tid", steps},
                      {"args", arguments}});
    events.push_back({{"name", "memory of tensors"},
                      {"ph", "C"},
                      {"ts", 1e6 * (s.begin + s.seconds)},
                      {"pid", 1},
                      {"args", {{"bytes", s.memory_after}}}});
  }

  // Every (lane, thread) pair becomes a thread of the viewer, ordered by lane and thread.
  std::map<std::pair<std::string, int>, int> lanes;
  for (const ThreadWork& w : p.work) lanes.try_emplace({w.lane, w.thread});
  int next = steps;
  for (auto& [lane, thread] : lanes)
    name("thread_name", thread = ++next, lane.first + " " + std::to_string(lane.second));

  for (const ThreadWork& w : p.work) {
    events.push_back({{"name", w.lane},
                      {"cat", "threads"},
                      {"ph", "X"},
                      {"ts", 1e6 * w.begin},
                      {"dur", 1e6 * w.seconds},
                      {"pid", 1},
                      {"tid", lanes.at({w.lane, w.thread})}});
  }

  return json_text(Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}) + "\n";
}

void write_kineto_trace(Session& s, const Data& data, int64_t first, int64_t count,
                        const std::filesystem::path& file) {
  run_observed(s, data, first, count, ProfilerState::KINETO)->save(file.string());
  if (std::error_code error; std::filesystem::file_size(file, error) == 0 || error)
    fail(Exit::io, file.string(),
         ": the trace could not be written; check that the folder exists and has free space");
}

void run_with_nvtx(Session& s, const Data& data, int64_t first, int64_t count) {
  LATHE_CHECK(s.device.is_cuda(), "run_with_nvtx: the session is on a CPU");
  run_observed(s, data, first, count, ProfilerState::NVTX);
}

}  // namespace lathe
