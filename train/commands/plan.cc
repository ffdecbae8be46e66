// Implements `lathe plan`: forecasts the memory, time and disk space of a run, and finds changes of
// the config with which the run fits.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>
#include <utility>

#include "core/device.h"
#include "core/dtype.h"
#include "core/free_memory.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "train/analysis/fit.h"
#include "train/analysis/forecast.h"
#include "train/analysis/memory_budget.h"
#include "train/commands/commands.h"
#include "train/commands/plan_chart.h"
#include "train/commands/plan_cluster.h"
#include "train/formats/source.h"
#include "train/session/peak.h"
#include "train/step/shares.h"
#include "train/step/stepper.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

double used(const MemoryStats& m, Memory category) {
  return static_cast<double>(m.used[static_cast<size_t>(category)]);
}
double peak(const MemoryStats& m, Memory category) {
  return static_cast<double>(m.peak[static_cast<size_t>(category)]);
}

/// Returns a line with the memory that the config needs if amp.working_copies = `copies` and
/// amp.cache = `cache`. The line begins with `what`.
std::string weight_line(LoadedConfig loaded, int ranks, const char* what, bool copies, bool cache) {
  AmpConfig& amp = loaded.config.amp;
  const bool is_own = amp.working_copies == copies && (copies || amp.cache == cache);
  amp.working_copies = copies;
  amp.cache = cache;
  const DryStep d = dry_step(loaded, ranks);
  return str(what, human_bytes(used(d.made, Memory::parameters)), " of parameters kept, ",
             human_bytes(peak(d.peaks, Memory::casts)), " of casts, ",
             human_bytes(static_cast<double>(d.tensors())), " in total at the peak",
             is_own ? " (this config)" : "", "\n");
}

std::string weight_lines(const LoadedConfig& loaded, int ranks) {
  const RunConfig& c = loaded.config;
  if (c.amp.dtype == "fp32" || !c.amp.master || adapters_of(c).rank > 0) return "";
  return str("weights in ", c.amp.dtype, ", two steps:\n",
             weight_line(loaded, ranks, "  kept as working copies  ", true, true),
             weight_line(loaded, ranks, "  cast at use, cached     ", false, true),
             weight_line(loaded, ranks, "  cast at each use        ", false, false));
}

double units_of(const RunConfig& c) { return static_cast<double>(units_of_step(c)); }
double micro_batches(const RunConfig& c) { return static_cast<double>(c.train.grad_accum); }

/// Returns the MFU as a fraction of the highest matmul rate measured on this machine (its ceiling),
/// or nullopt if the ceiling was never measured. Sets `is_provisional` to whether the ceiling may
/// be too low, because it comes from only a few measurements.
std::optional<double> mfu_of(const RunConfig& c, const Forecast& f, bool& is_provisional) {
  const int threads = c.train.threads > 0 ? static_cast<int>(c.train.threads) : default_threads();
  const auto ceiling = known_peak("cpu", threads, compute_dtype(c.amp));
  if (!ceiling) return std::nullopt;
  is_provisional = ceiling->is_provisional();
  return f.dry.whole_micro_batch.matmul() * micro_batches(c) / f.times.total() / ceiling->rate /
         f.dry.ranks;
}

/// Returns the number of micro-batches that a process computes in a step.
int64_t own_micro_batches(const RunConfig& c, const DryStep& d) {
  return c.train.grad_accum / d.data_ranks();
}

/// Returns the share of the forward and backward time during which a pipeline stage waits.
double bubble_share(const RunConfig& c, const DryStep& d) {
  return d.bubble / (d.bubble + static_cast<double>(own_micro_batches(c, d)));
}

int64_t most_checkpoints(const Forecast& f) { return f.kept_checkpoints + 1; }

/// Formats a plan as lines, each with a name and a value.
class PlanText {
 public:
  PlanText(const RunConfig& config, const Forecast& forecast) : c_(config), f_(forecast) {}

  /// Returns all lines. `weights` is the result of weight_lines().
  std::string text(const std::string& weights) {
    add_parameters();
    if (d_.ranks > 1) add_processes();
    add_memory();
    if (d_.ranks > 1) line("exchange", bytes(d_.sent_bytes) + " sent by a process in a step");
    out_ << weights;
    add_time();
    add_disk();
    return out_.str();
  }

 private:
  static std::string bytes(int64_t n) { return human_bytes(static_cast<double>(n)); }

  void line(const std::string& name, const std::string& value) {
    constexpr size_t width = 26;
    out_ << name << std::string(name.size() < width ? width - name.size() : 1, ' ') << value
         << "\n";
  }

  void add_parameters() {
    const auto all = static_cast<double>(d_.parameters), trained = static_cast<double>(d_.trained);
    std::string text = format("%.0f", all);
    if (all >= 1e9)
      text += format(" (%.2f billion)", all / 1e9);
    else if (all >= 1e4)
      text += format(" (%.*f million)", all < 1e5 ? 3 : 2, all / 1e6);
    if (trained < all) text += format(", %.0f of them trained", trained);
    line("parameters", text);
  }

  void add_processes() {
    const int replica = d_.ranks / d_.data_ranks();
    std::string text = str(d_.ranks);
    if (replica > 1) text += str(" in groups of ", replica);
    text += str(", each with ", own_micro_batches(c_, d_), " of the ", c_.train.grad_accum,
                " micro-batches of a step; memory is that of the process that needs the most");
    if (d_.replica.pipeline > 1) text += str(", in stage ", d_.stage, " of ", d_.replica.pipeline);
    line("processes", text);
  }

  void add_memory() {
    // The memory of parameters and of the optimizer state is constant. The other amounts are peaks
    // during the steps.
    const auto mapped = static_cast<double>(d_.mapped_bytes);
    line("memory: parameters", human_bytes(used(d_.made, Memory::parameters) + mapped) +
                                   (d_.has_copies ? " (with working copies)" : "") +
                                   (mapped > 0 ? " in memory at a time, the others on disk" : ""));
    if (const double casts = peak(d_.peaks, Memory::casts); casts > 0)
      line("memory: weight casts", human_bytes(casts) + " at the peak");
    line("memory: optimizer", human_bytes(used(d_.made, Memory::optimizer)));
    line("memory: gradients", human_bytes(peak(d_.peaks, Memory::gradients)));
    line("memory: activations", human_bytes(peak(d_.peaks, Memory::activations)) + " at the peak");
    line("memory: data", human_bytes(peak(d_.peaks, Memory::data)));
    if (d_.save_copy_bytes > 0) {
      line("memory: checkpoints", "up to " + bytes(d_.save_copy_bytes) +
                                      ", for copies of the tensors that a background save has not "
                                      "written by the next update");
    }
    line("memory: program", bytes(f_.program_bytes));
    // The total is less than the sum of the peaks, because they are reached at different times.
    line("memory: peak",
         bytes(f_.peak_rss()) + " resident, " + bytes(d_.tensors()) + " of it tensors");
  }

  void add_time() {
    // The dry run counts the FLOPs of one micro-batch, but a step has several.
    const FlopCount& flops = d_.whole_micro_batch;
    line("FLOPs a step",
         format("%.3g in matmuls (%.3g by the 6N formula), %.3g in all",
                flops.matmul() * micro_batches(c_), d_.formula_flops * micro_batches(c_),
                flops.total() * micro_batches(c_)));

    const double step_s = f_.times.total();
    std::string text = human_time(step_s) +
                       format(" (%.0f %s/s), ", units_of(c_) / step_s, d_.unit.c_str()) +
                       (f_.is_measured ? "measured" : "from a smaller version that was measured");
    if (d_.ranks > 1) text += ", each process on a machine like this one, excluding the exchange";
    line("time of a step", text);
    line("", format("forward %.0f%%, backward %.0f%%, optimizer %.0f%%",
                    100 * f_.times.forward / step_s, 100 * f_.times.backward / step_s,
                    100 * f_.times.optimizer / step_s));
    if (d_.replica.pipeline > 1) add_pipeline();

    // A ceiling from few measurements may be too low, and the MFU is then too high.
    bool is_provisional = false;
    if (const auto mfu = mfu_of(c_, f_, is_provisional)) {
      line("mfu", format("%.0f%%", 100 * *mfu) +
                      (is_provisional ? " (of a ceiling measured fewer than three times)" : ""));
    }
    line("time of the run", str(human_time(step_s * static_cast<double>(c_.train.steps)), " for ",
                                c_.train.steps, " steps, evaluation not counted"));
  }

  void add_pipeline() {
    line("pipeline bubble",
         format("%.0f%% of the forward and backward passes, with ", 100 * bubble_share(c_, d_)) +
             str(own_micro_batches(c_, d_), " micro-batches per process"));

    double all = 0;
    for (const StageForecast& stage : d_.stages) all += stage.flops;
    for (size_t i = 0; i < d_.stages.size(); ++i) {
      const StageForecast& stage = d_.stages[i];
      line(str("stage ", i), str(stage.blocks, stage.blocks == 1 ? " block, " : " blocks, ",
                                 format("%.0f%% of the FLOPs, ", 100 * stage.flops / all),
                                 bytes(stage.resident_bytes + f_.program_bytes), " resident"));
    }
  }

  void add_disk() {
    line("disk", str(bytes(d_.checkpoint_bytes), " per checkpoint, ",
                     bytes(d_.checkpoint_bytes * most_checkpoints(f_)), " at most (",
                     f_.kept_checkpoints, " kept and one being written)"));
    if (d_.scratch_bytes == 0) return;
    line("disk: scratch files", bytes(d_.scratch_bytes) + (d_.ranks > 1 ? " of each process" : "") +
                                    " while the run lasts; each step reads and writes them, but "
                                    "the time of a step excludes this");
  }

  const RunConfig& c_;
  const Forecast& f_;
  const DryStep& d_ = f_.dry;
  std::ostringstream out_;
};

Json json_of(const RunConfig& c, const Forecast& f) {
  // Values of keys that end in _mb are in MiB.
  const auto mb = [](double bytes) { return bytes / (1 << 20); };
  const DryStep& d = f.dry;
  bool is_provisional = false;
  const auto mfu = mfu_of(c, f, is_provisional);
  const double step_s = f.times.total();
  Json memory = Json::object();
  for (const auto& [category, bytes] : memory_by_category(f)) memory[category] = mb(bytes);
  Json stages = Json::array();
  for (const StageForecast& stage : d.stages) {
    stages.push_back(
        {{"blocks", stage.blocks},
         {"flops", stage.flops},
         {"peak_rss_mb", mb(static_cast<double>(stage.resident_bytes + f.program_bytes))}});
  }

  return {{"params", d.parameters},
          {"ranks", d.ranks},
          {"sent_bytes_per_step", d.sent_bytes},
          {"trained_params", d.trained},
          {"peak_rss_mb", mb(static_cast<double>(f.peak_rss()))},
          {"tensors_mb", mb(static_cast<double>(d.tensors()))},
          {"memory_mb", memory},
          {"ms_per_step", 1e3 * step_s},
          {"pipeline_bubble", bubble_share(c, d)},
          {"stages", stages},
          {"ms_forward", 1e3 * f.times.forward},
          {"ms_backward", 1e3 * f.times.backward},
          {"ms_optimizer", 1e3 * f.times.optimizer},
          {"measured", f.is_measured},
          {d.unit + "_per_s", units_of(c) / step_s},
          {"matmul_flops_per_step", d.whole_micro_batch.matmul() * micro_batches(c)},
          {"flops_per_step", d.whole_micro_batch.total() * micro_batches(c)},
          {"mfu", mfu ? Json(*mfu) : Json()},
          {"run_s", step_s * static_cast<double>(c.train.steps)},
          {"checkpoint_bytes", d.checkpoint_bytes},
          {"scratch_bytes", d.scratch_bytes},
          {"disk_bytes", d.checkpoint_bytes * most_checkpoints(f)}};
}

/// Returns an estimate of the step time and the memory on GPUs, computed from their data sheets.
/// Assumes that each GPU has a copy of the model and computes its share of the micro-batches.
std::string text_for(const RunConfig& c, const Forecast& f, const std::string& gpus) {
  // Fraction of the published rate that well-tuned training reaches.
  constexpr double reached = 0.4;
  constexpr double context_bytes = 1e9;  // memory that CUDA and its libraries take
  const auto [gpu, n] = parse_gpus(gpus);
  const double rate =
      reached * (compute_dtype(c.amp) == at::kFloat ? gpu.tf32_flops : gpu.bf16_flops);
  const auto count = static_cast<double>(n), trained = static_cast<double>(f.dry.trained);

  // An update moves 28 bytes per parameter: it reads and writes the parameter and two states, and
  // reads the gradient.
  const double step_s = f.dry.micro_batch.matmul() * micro_batches(c) / rate / count +
                        28 * trained / gpu.bytes_per_second;

  const double needs = static_cast<double>(f.dry.peaks.total_peak) + context_bytes;
  return str(
      "on ", n, " x ", gpu.name, ", from data sheets (nothing was measured; ",
      format("%.0f%%", 100 * reached), " of the published rate, communication not counted):\n",
      format("  time of a step          %.1f ms (%.0f %s/s), ", 1e3 * step_s, units_of(c) / step_s,
             f.dry.unit.c_str()),
      human_time(step_s * static_cast<double>(c.train.steps)), " for ", c.train.steps, " steps\n",
      "  memory of each GPU      ", human_bytes(needs), " of ", human_bytes(gpu.memory_bytes),
      needs <= gpu.memory_bytes ? ", fits\n" : ", does not fit\n");
}

/// Prints changes with which the run fits, as options of a command line. Returns Exit::no_fit if no
/// changes are enough. `has_budget` is whether the config sets memory.budget, which `limit` then
/// replaces.
Exit print_fit(const LoadedConfig& loaded, Overrides given, const Forecast& f,
               const std::string& limit, bool has_budget) {
  if (has_budget) given.emplace_back("memory.budget", "");
  const int64_t bytes = limit == "true" ? free_memory() : parse_bytes(limit);
  const auto fit = find_fit(loaded.path, given, f, bytes);
  const std::string within = str(human_bytes(static_cast<double>(bytes)),
                                 limit == "true" ? " (free on this machine)" : "");
  std::cout << "fit                       ";
  if (!fit) {
    std::cout << "no change of keys brings the run within " << within << "; use a smaller model\n";
    return Exit::no_fit;
  }
  if (fit->empty()) {
    std::cout << "the run stays within " << within << " without changes\n";
    return Exit::done;
  }

  std::string keys;
  for (const auto& [key, value] : *fit) keys += " --" + key + "=" + value;
  if (has_budget) keys += " --memory.budget=";
  std::cout << "within " << within << (f.dry.ranks > 1 ? " for each process" : "") << " with"
            << keys << "\n";
  return Exit::done;
}

/// Parses the value of --chart, "key=value,key=value".
Overrides chart_keys(const std::string& text) {
  Overrides keys;
  for (const std::string& word : comma_list(text)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(Exit::usage,
           "command line: --chart takes keys of the config with their values, such as "
           "memory.recompute=blocks, but ",
           printable_line(word), " does not have this form");
    }
    keys.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return keys;
}

/// Prints a chart of the memory of the config, without and with the keys of --chart.
Exit print_chart(const Arguments& a, const LoadedConfig& loaded, int ranks) {
  const std::string text = a.get("chart", "");
  const LoadedConfig other = load_with(loaded.path, key_arguments(a), chart_keys(text));
  check_process_count(other, ranks);
  check_tensor_ranks(other, ranks);
  // Measure the memory of the program first, because forecasts leave memory allocated in this
  // process.
  const int64_t program = process_overhead_bytes();
  const auto forecast_of = [&](const LoadedConfig& of) {
    Forecast f = forecast(apply_memory_budget(of, ranks, program).loaded, ranks);
    f.program_bytes = program;
    return f;
  };
  const Forecast alone = forecast_of(loaded);
  const Forecast changed = forecast_of(other);
  std::cout << memory_chart({{printable_line(a.positionals.at(0)), alone},
                             {"with " + printable_line(text), changed}})
            << std::flush;
  return Exit::done;
}

/// Returns the config without memory.budget.
BudgetedConfig without_budget(LoadedConfig loaded) {
  loaded.config.memory.budget.clear();
  return {std::move(loaded), ""};
}

Exit run_plan(const Arguments& a) {
  const LoadedConfig resolved = resolve_sources(as_new_run(load_config_argument(a)));

  const bool json = a.is_true("json");
  const std::string fit = a.get("fit", ""), gpus = a.get("for", "");
  // Refuse invalid options before the forecast, which takes seconds.
  if (!fit.empty() && fit != "true") parse_bytes(fit, "command line: --fit");
  if (!gpus.empty()) parse_gpus(gpus);
  const auto ranks = integer_between(a.get("ranks", "1"), 1, 4096);
  if (!ranks)
    fail(Exit::usage, "command line: --ranks must be a number of processes from 1 to 4096");
  if (*ranks > 1 && !gpus.empty())
    fail(Exit::usage,
         "command line: --ranks cannot be combined with --for; use --card for several GPUs");
  if (!asks_for_cluster(a)) {
    check_process_count(resolved, *ranks);
    check_tensor_ranks(resolved, *ranks);
  }
  if (json && (!fit.empty() || !gpus.empty()))
    fail(Exit::usage, "command line: --json cannot be combined with --fit or --for");

  if (a.flags.contains("chart")) {
    if (json || !fit.empty() || !gpus.empty() || asks_for_cluster(a))
      fail(Exit::usage,
           "command line: --chart cannot be combined with --json, --fit, --for or --card");
    return print_chart(a, resolved, static_cast<int>(*ranks));
  }
  if (asks_for_cluster(a)) {
    if (!fit.empty() || !gpus.empty() || a.flags.contains("ranks"))
      fail(Exit::usage, "command line: --card cannot be combined with --fit, --for or --ranks");
    return plan_cluster(a, resolved);
  }

  const bool has_budget = !resolved.config.memory.budget.empty();
  // With --fit, the search replaces the budget.
  const BudgetedConfig budget =
      fit.empty() ? apply_memory_budget(resolved, *ranks) : without_budget(resolved);
  const LoadedConfig& loaded = budget.loaded;
  const Forecast f = forecast(loaded, *ranks);
  if (json) {
    std::cout << json_text(json_of(loaded.config, f)) << std::endl;
    return Exit::done;
  }

  if (!budget.text.empty()) std::cout << budget.text << "\n";
  std::cout << PlanText(loaded.config, f).text(weight_lines(loaded, *ranks));
  const Exit code =
      fit.empty() ? Exit::done : print_fit(loaded, key_arguments(a), f, fit, has_budget);
  if (!gpus.empty()) std::cout << text_for(loaded.config, f, gpus);
  std::cout << std::flush;
  return code;
}

}  // namespace

Command plan_command() {
  Command command{
      .name = "plan",
      .usage = "CONFIG [--section.key=value ...]",
      .doc = "Forecast the memory, FLOPs, time and disk space of a run without training it.",
      .examples = {"plan configs/gpt2_124m.toml --train.batch_size=4",
                   "plan configs/gpt2_124m.toml --fit 8GB"},
      .flags =
          {{"json", "Print a JSON object instead of a table."},
           {"fit",
            "Print which keys to change so that the run, or with --ranks each of its processes, "
            "stays within this much memory, such as 8GB. The exit code is 10 if no change is "
            "enough. Default: the free memory of this machine."},
           {"chart",
            "Draw the memory of a step by category, without and with these changes of keys, such "
            "as memory.recompute=blocks,optim.kind=adamw8bit."},
           {"ranks", "Forecast for one process of a run on this many processes. Default: 1."},
           {"for",
            "Estimate the time on GPUs that this machine does not have, such as 8xH100, from their "
            "published specifications."}},
      .config_keys = true,
      .run = run_plan,
      .switches = {"json", "fit"},
      .amount_switches = {"fit"}};
  command.flags.insert(command.flags.end(), cluster_flags().begin(), cluster_flags().end());
  return command;
}

}  // namespace lathe
