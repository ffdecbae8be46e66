#include <iostream>

#include "core/io/file.h"
#include "train/analysis/op_list.h"
#include "train/analysis/open.h"
#include "train/analysis/trace.h"
#include "train/commands/commands.h"
#include "train/config/path_kind.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Parses a step such as "10", or a range such as "10:13", which means steps 10 to 12. Returns the
/// first step and the number of steps.
std::pair<int64_t, int64_t> parse_steps(const std::string& text) {
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& part) -> int64_t {
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string::npos;
    return digits ? std::stoll(part) : -1;
  };
  const int64_t first = number(text.substr(0, colon)),
                last = colon == std::string::npos ? first + 1 : number(text.substr(colon + 1));
  if (first < 0 || last <= first)
    fail(Exit::usage, "command line: --steps must be a step or a range such as 10:13, not ", text);
  return {first, last - first};
}

/// Returns the file in which a run keeps the memory of its profiled steps. `lathe report` draws
/// this memory.
fs::path memory_file(const fs::path& run) { return run / "profile.json"; }

/// Checks the flags and output files before the profile, which takes a while.
void check_flags(const Arguments& a) {
  const bool lists_ops = a.is_true("ops");
  for (const char* other : {"trace", "kineto", "nvtx"}) {
    if (lists_ops && a.flags.contains(other))
      fail(Exit::usage,
           "command line: --ops lists the ops of one step and measures nothing; leave ", "--",
           other, " out");
  }

  if (a.flags.contains("trace")) check_output(a, a.get("trace", ""), trace_mark);
  if (a.flags.contains("kineto")) check_output(a, a.get("kineto", ""), kineto_mark);
  const fs::path run = a.positionals.empty() ? fs::path() : fs::path(a.positionals[0]);
  if (is_run(run)) check_output(a, memory_file(run), "\"categories\"");
}

/// Writes the traces that the flags request. For --kineto and --nvtx, runs `count` more steps,
/// beginning with step `next`, because the session has already trained the profiled steps.
void write_traces(const Arguments& a, Session& session, const Data& data, const Profile& profile,
                  int64_t next, int64_t count) {
  const auto tell = [](const std::string& file) {
    std::cout << "trace in " << file << "; open it in Perfetto or chrome://tracing" << std::endl;
  };

  if (a.flags.contains("trace")) {
    write_file_durably(a.get("trace", ""), profile_trace(profile));
    tell(a.get("trace", ""));
  }
  if (a.flags.contains("kineto")) {
    write_kineto_trace(session, data, next, count, a.get("kineto", ""));
    tell(a.get("kineto", ""));
  }
  if (a.is_true("nvtx")) run_with_nvtx(session, data, next, count);
}

/// Returns the recorded config of a checkpoint's run, with the keys of the command line. Sets
/// train.out_dir to the current folder of the run, because the run may have been moved.
LoadedConfig config_of_run(const Arguments& a, const fs::path& checkpoint) {
  const fs::path run = fs::absolute(checkpoint).lexically_normal().parent_path().parent_path();
  Arguments named = a;
  named.positionals[0] = (run / "config.toml").string();
  LoadedConfig loaded;
  if (fs::exists(named.positionals[0])) {
    loaded = load_config_argument(named);
  } else {
    // `lathe merge` writes only a checkpoint and no config.toml.
    loaded.config = saved_config(read_state(checkpoint), checkpoint);
    if (const Overrides keys = key_arguments(a); !keys.empty())
      fail(Exit::usage, "command line: --", keys[0].first, ": ", a.positionals[0],
           " is a merged run without a config.toml; leave the key out");
  }
  loaded.config.train.out_dir = run.string();
  return loaded;
}

Exit run_profile(const Arguments& a) {
  const auto [first, count] = parse_steps(a.get("steps", "3:8"));
  check_flags(a);

  const std::string path = a.positionals[0];
  const PathKind kind = kind_of(path);
  const bool of_run = kind == PathKind::run || kind == PathKind::checkpoint;

  fs::path checkpoint;
  if (of_run) checkpoint = find_checkpoint(path);
  const RunData data =
      open_for_benchmark(of_run ? config_of_run(a, checkpoint) : load_config_argument(a));
  Session session = Session::make(data);
  if (of_run) session.load(checkpoint, read_state(checkpoint));

  if (a.is_true("ops")) {
    std::cout << op_list_text(list_step_ops(session, *data.data, first)) << std::flush;
    return Exit::done;
  }

  if (a.is_true("nvtx") && !session.device.is_cuda())
    fail(Exit::usage,
         "command line: --nvtx marks the work of a GPU, and this run is on a CPU; leave it out");

  const Ceilings ceilings = machine_ceilings(session);
  const Profile profile = profile_steps(session, *data.data, first, count);
  std::cout << profile_text(profile, ceilings, session.task.unit(),
                            static_cast<double>(units_of_step(session.config)))
            << std::flush;

  if (kind == PathKind::run) {
    const fs::path file = memory_file(path);
    write_file_durably(file, profile_memory(profile));
    std::cout << "wrote " << file.string() << ", which `lathe report` draws" << std::endl;
  }

  write_traces(a, session, *data.data, profile, first + count, count);
  return Exit::done;
}

}  // namespace

Command profile_command() {
  return {
      .name = "profile",
      .usage = "CONFIG|RUN [--section.key=value ...]",
      .doc = "Show where the time and memory of a training step go, by op and by module.",
      .examples = {"profile configs/quickstart.toml",
                   "profile configs/shakespeare_char_cpu.toml --steps 10:13 --trace trace.json"},
      .flags =
          {{"steps",
            "Profile the steps from the first number up to, but not including, the second. Earlier "
            "steps run without profiling. Default: 3:8."},
           {"trace",
            "Write all spans and the work of each thread to this file in Chrome's trace event "
            "format."},
           {"kineto",
            "Write Kineto's trace of the same number of further steps to this file, with ATen's "
            "ops and a GPU's kernels."},
           {"ops",
            "List the ops of the first step of --steps instead, forward and backward: tensors, "
            "bytes, FLOPs, and the share of elementwise ops."},
           {"nvtx",
            "Run the same number of further steps with NVTX ranges for Nsight Systems, on a GPU."},
           force_flag},
      .config_keys = true,
      .run = run_profile,
      .switches = {"force", "nvtx", "ops"}};
}

}  // namespace lathe
