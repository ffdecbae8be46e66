#include "train/commands/bench.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/kernels/gemm.h"
#include "core/kernels/isa.h"
#include "core/memory.h"
#include "core/timing.h"
#include "train/analysis/machine.h"
#include "train/analysis/open.h"
#include "train/commands/commands.h"
#include "train/commands/precision.h"
#include "train/formats/source.h"
#include "train/session/peak.h"
#include "train/step/stepper.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

struct BenchResult {
  std::string unit;  ///< "tokens" or "samples"
  double ms_median = 0, ms_min = 0, units_per_s = 0, first_step_s = 0, peak_rss_mb = 0,
         final_loss = 0;
  double activations_mb = 0;  ///< on a CPU, peak memory of activations in a step, in MB
  std::string gpu;            ///< name of the GPU; empty if steps ran on the CPU
  double gpu_mb = 0;          ///< peak memory of tensors on the GPU, in MB
  int64_t parameters = 0;
};
/// Trains train.steps steps without evaluations, checkpoints or a run folder. The times exclude
/// the first `skip` steps.
BenchResult bench_steps(LoadedConfig loaded, int64_t skip) {
  const RunData data = open_for_benchmark(std::move(loaded));
  Session session = Session::make(data);
  const TrainConfig& c = session.config.train;
  Loader loader = training_loader(session, *data.data, 0);
  BenchResult result;
  result.parameters = count(session.params);

  std::vector<double> ms;
  for (int64_t step = 0; step < c.steps; ++step) {
    const auto begin = Clock::now();
    const StepResult last = run_step(session, loader, step);
    // A GPU may still be working when the call returns. Include its work in the time of the step.
    synchronize(session.device_name);
    if (step >= std::min(skip, c.steps - 1)) ms.push_back(1e3 * seconds_since(begin));
    // Measure from the start of the process, to include loading libraries and data.
    if (step == 0) result.first_step_s = process_age();
    result.final_loss = read_stats(session, last).loss;
  }

  std::sort(ms.begin(), ms.end());
  const size_t half = ms.size() / 2;
  result.ms_min = ms.front();
  result.ms_median = ms.size() % 2 == 1 ? ms[half] : (ms[half - 1] + ms[half]) / 2;

  result.unit = data.task->unit();
  result.units_per_s = 1e3 * static_cast<double>(units_of_step(session.config)) / result.ms_median;
  result.activations_mb =
      static_cast<double>(memory_stats().peak[static_cast<size_t>(Memory::activations)]) /
      (1 << 20);

  if (session.device.is_cuda()) {
    result.gpu = device_model("cuda");
    result.gpu_mb = static_cast<double>(cuda_api().memory_peak()) / (1 << 20);
  }

  result.peak_rss_mb = static_cast<double>(peak_rss_bytes()) / (1 << 20);
  return result;
}

}  // namespace

namespace {

/// Prints the rate of large matrix products.
Exit bench_peak(int threads, const std::string& dtype) {
  const double rate = measure_peak(threads, dtype_from_config(dtype)).rate;
  std::cout << json_text(Json{{"device", device_model("cpu")},
                              {"isa", cpu_isa()},
                              {"threads", threads},
                              {"dtype", dtype},
                              {"tflops", rate / 1e12}})
            << std::endl;
  return Exit::done;
}

/// Runs `bench peak` and `bench ops`.
Exit bench_kernels(const Arguments& arguments) {
  const std::string dtype = arguments.get("dtype", "fp32");
  if (dtype != "fp32" && dtype != "bf16")
    fail(Exit::usage, "command line: --dtype must be fp32 or bf16, not ", dtype);

  const int threads =
      static_cast<int>(arguments.number("threads", default_threads(), between(1, 4096), true));
  install_allocator();
  configure_backend("cpu", threads, /*tf32=*/false);
  if (arguments.positionals[0] == "peak") return bench_peak(threads, dtype);

  const auto size = [&](const char* flag, double otherwise) {
    return static_cast<int64_t>(arguments.number(flag, otherwise, between(1, 1e6), true));
  };
  const OpSizes sizes{.batch = size("batch", 4),
                      .context = size("context", 256),
                      .width = size("width", 768),
                      .vocab = size("vocab", 50304),
                      .only = arguments.get("only", "")};
  if (sizes.width % 64 != 0)
    fail(Exit::usage, "command line: --width must be a multiple of 64, not ", sizes.width);
  std::cout << time_ops(sizes, threads, dtype) << std::endl;
  return Exit::done;
}

Exit bench_accumulation(const Arguments& arguments) {
  const int powers = static_cast<int>(arguments.number("powers", 7, between(3, 8), true));
  std::cout << accumulation_table(accumulation_errors(powers)) << std::flush;
  return Exit::done;
}

/// Times training steps of a config.
Exit bench_config(const Arguments& arguments) {
  const auto skip = static_cast<int64_t>(arguments.number("skip", 2, at_least(0), true));
  const LoadedConfig loaded = load_config_argument(arguments, 1);
  if (arguments.flags.contains("skip") && skip >= loaded.config.train.steps)
    fail(Exit::usage, "command line: --skip ", skip,
         " is not less than train.steps = ", loaded.config.train.steps,
         ", so no step would be timed; lower --skip or raise train.steps");
  // Observe the machine during the steps: its load decides whether the result can be trusted.
  const MachineWatch machine;
  const BenchResult r = bench_steps(loaded, skip);
  const Json facts = machine.facts();
  for (const Json& why : facts["why"])
    log_warn("these times are unreliable: ", why.get<std::string>());

  Json line{{"params", r.parameters},
            {"ms_median", r.ms_median},
            {"ms_min", r.ms_min},
            {r.unit + "_per_s", r.units_per_s},
            {"first_step_s", r.first_step_s},
            {"peak_rss_mb", r.peak_rss_mb}};

  if (r.gpu.empty()) {
    line["activations_mb"] = r.activations_mb;
  } else {
    line["peak_card_mb"] = r.gpu_mb;
    line["card"] = r.gpu;
  }

  line["final_loss"] = json_number(r.final_loss);
  line["machine"] = facts;
  std::cout << json_text(line) << std::endl;
  return Exit::done;
}

/// A benchmark of `lathe bench`.
struct Benchmark {
  Exit (*run)(const Arguments&);
  std::set<std::string> flags;
  bool reads_config = false;  ///< whether it takes a config as second positional, and config keys
};

const std::map<std::string, Benchmark>& benchmarks() {
  // name, {run, flags, reads_config}
  static const std::map<std::string, Benchmark> all{
      {"step", {bench_config, {"skip"}, true}},
      {"generate",
       {bench_generate,
        {"load-dtype", "double-quant", "batch", "context", "tokens", "threads"},
        true}},
      {"ops", {bench_kernels, {"dtype", "threads", "batch", "context", "width", "vocab", "only"}}},
      {"peak", {bench_kernels, {"dtype", "threads"}}},
      {"accumulation", {bench_accumulation, {"powers"}}},
      {"collectives", {bench_collectives, {"mb", "device"}}}};
  return all;
}

Exit run_bench(const Arguments& arguments) {
  const std::string& what = arguments.positionals[0];
  const auto found = benchmarks().find(what);
  if (found == benchmarks().end()) {
    fail(Exit::usage, "lathe bench has no benchmark ", what,
         "; it has `bench step`, `bench generate`, `bench ops`, `bench peak`, `bench accumulation` "
         "and `bench collectives`");
  }

  // The parser accepts the flags of all benchmarks, so refuse flags of other benchmarks here.
  const Benchmark& benchmark = found->second;
  check_flags(
      arguments, benchmark.flags, benchmark.reads_config,
      benchmark.reads_config ? "; sizes, dtype and threads of `bench step` are config keys" : "");
  if (arguments.positionals.size() != (benchmark.reads_config ? 2 : 1)) {
    fail(Exit::usage,
         "usage: lathe bench step CONFIG [--skip 2] [--section.key=value ...] | lathe bench ops "
         "[--dtype bf16] [--threads N] [--batch 4] [--context 256] [--width 768] [--vocab 50304] "
         "[--only NAME] | lathe bench peak [--dtype bf16] [--threads N] | lathe bench "
         "accumulation [--powers 7] | lathe bench generate CONFIG|RUN [--load-dtype fp32] "
         "[--double-quant] [--batch 1] [--context 512] [--tokens 64] [--threads N] | lathe bench "
         "collectives [--mb 64] [--device cpu]");
  }
  return benchmark.run(arguments);
}

}  // namespace

std::string kernels_text() {
  const auto takes = [](Element type) {
    const bool widens = multiplied_as(type) != type;
    return str(gemm_ready(type) ? "Lathe's" : "ATen's", " kernels",
               gemm_ready(type) && widens ? ", multiplied in fp32" : "", "\n");
  };
  return str("cpu           ", device_model("cpu"), "\ninstructions  ", isa_name(active_isa()),
             " of ", isa_name(machine_isa()), "\nvector loops  ", vector_set(), " (Highway), ",
             cpu_isa(), " (ATen)\nfp32          ", takes(Element::f32), "bf16          ",
             takes(Element::bf16), "fp16          ", takes(Element::f16),
             "fp64          ATen's kernels\n");
}

Command bench_command() {
  return {.name = "bench",
          .usage =
              "step CONFIG [--section.key=value ...] | generate CONFIG|RUN | ops | peak | "
              "accumulation | collectives",
          .doc =
              "Time training steps, generation, ops (compared with ATen's), the fastest matrix "
              "product or collectives (compared with c10d's), or measure the error of long sums; "
              "timings end with a line of JSON.",
          .examples = {"bench step configs/quickstart.toml --train.steps=50",
                       "bench generate runs/quickstart --load-dtype int8 --tokens 128"},
          .flags =
              {{"skip", "For step: leave out the times of this many first steps. Default: 2."},
               {"dtype", "Use fp32 or bf16 for ops and peak. Default: fp32.", {"fp32", "bf16"}},
               {"threads", "Use this many CPU threads for ops, peak and generate."},
               {"batch",
                "Use this many sequences for ops (default: 4) or texts for generate (default: 1)."},
               {"context",
                "Use sequences of this many tokens for ops (default: 256), or a prompt of this "
                "many for generate (default: 512, or half the model's context)."},
               {"tokens", "For generate: generate this many tokens. Default: 64."},
               {"load-dtype",
                "Keep the weights for generate as fp32, bf16, fp16, int8 or nf4. Default: fp32, or "
                "adapters.dtype for adapters.",
                {"fp32", "bf16", "fp16", "int8", "nf4"}},
               {"double-quant", "Also quantize nf4's scales, to 8 bits, for generate."},
               {"width", "Use this many channels for ops, a multiple of 64. Default: 768."},
               {"vocab", "Use a vocabulary of this many tokens for ops. Default: 50304."},
               {"only", "Time only ops whose name contains this text."},
               {"powers", "Measure sums of up to 10^powers terms for accumulation. Default: 7."},
               {"mb", "Time collectives of up to this many MB on each process. Default: 64."},
               {"device",
                "Time collectives of tensors on cpu or cuda. Default: cpu.",
                {"cpu", "cuda"}}},
          .config_keys = true,
          .min_positionals = 1,
          .max_positionals = 2,
          .run = run_bench,
          .switches = {"double-quant"},
          .subcommands = {"step", "generate", "ops", "peak", "accumulation", "collectives"}};
}

}  // namespace lathe
