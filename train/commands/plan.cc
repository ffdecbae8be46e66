// `lathe plan` forecasts what a run will need, and finds how to make it fit.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <sstream>

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

/// Returns one line: the memory of weights in the matmul dtype that are kept, cached, or cast at
/// each use.
std::string weight_line(LoadedConfig loaded, int ranks, const char* what, bool copies, bool cache) {
  AmpConfig& amp = loaded.config.amp;
  const bool is_own = amp.working_copies == copies && (copies || amp.cache == cache);
  amp.working_copies = copies;
  amp.cache = cache;
  const DryStep d = dry_step(loaded, ranks);
  return str(what, human_bytes(used(d.made, Memory::parameters)), " of parameters kept, ",
             human_bytes(peak(d.peaks, Memory::casts)), " of casts, ",
             human_bytes(static_cast<double>(d.tensors())), " in all at the highest",
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

/// Returns the share of the machine's matmul ceiling; nullopt where the ceiling was never measured.
std::optional<double> mfu_of(const RunConfig& c, const Forecast& f, bool& is_provisional) {
  const int threads = c.train.threads > 0 ? static_cast<int>(c.train.threads) : default_threads();
  const auto ceiling = known_peak("cpu", threads, compute_dtype(c.amp));
  if (!ceiling) return std::nullopt;
  is_provisional = ceiling->is_provisional();
  return f.dry.whole_micro_batch.matmul() * micro_batches(c) / f.times.total() / ceiling->rate /
         f.dry.ranks;
}

int64_t most_checkpoints(const Forecast& f) { return f.kept_checkpoints + 1; }

std::string text_of(const RunConfig& c, const Forecast& f, const std::string& weights) {
  const DryStep& d = f.dry;
  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& value) {
    out << name << std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') << value << "\n";
  };

  const auto all = static_cast<double>(d.parameters), trained = static_cast<double>(d.trained);
  line("parameters",
       format("%.0f", all) +
           (all < 1e4 ? ""
                      : format(" (%.*f %s)", all < 1e5 ? 3 : 2, all < 1e9 ? all / 1e6 : all / 1e9,
                               all < 1e9 ? "million" : "billion")) +
           (trained < all ? format(", %.0f of them trained", trained) : ""));

  // Parameters and the optimizer's state stay as they are made; the others are peaks of the steps.
  if (d.ranks > 1) {
    const int replica = d.ranks / d.data_ranks();
    const std::string stage =
        d.replica.pipeline > 1
            ? str(" of stage ", d.stage, " of ", d.replica.pipeline, ", which needs the most")
            : "";
    line("processes",
         str(d.ranks, replica > 1 ? str(" in groups of ", replica) : "", ", each with ",
             c.train.grad_accum / d.data_ranks(), " of the ", c.train.grad_accum,
             " micro-batches of a step; memory is that of one", stage));
  }
  const auto mapped = static_cast<double>(d.mapped_bytes);
  line("memory: parameters", human_bytes(used(d.made, Memory::parameters) + mapped) +
                                 (d.has_copies ? " (with working copies)" : "") +
                                 (mapped > 0 ? " at a time, of those on the disk" : ""));
  if (const double casts = peak(d.peaks, Memory::casts); casts > 0)
    line("memory: weight casts", human_bytes(casts) + " at the highest");
  line("memory: optimizer", human_bytes(used(d.made, Memory::optimizer)));
  line("memory: gradients", human_bytes(peak(d.peaks, Memory::gradients)));
  line("memory: activations", human_bytes(peak(d.peaks, Memory::activations)) + " at the highest");
  line("memory: data", human_bytes(peak(d.peaks, Memory::data)));

  if (d.held_bytes > 0)
    line("memory: checkpoints", human_bytes(static_cast<double>(d.held_bytes)) +
                                    ", the copy that is written in the background");

  line("memory: program", human_bytes(static_cast<double>(f.program_bytes)));
  // Less than the sum of the peaks, which are reached at different times.
  line("memory: at the highest", human_bytes(static_cast<double>(f.peak_rss())) + " resident, " +
                                     human_bytes(static_cast<double>(d.tensors())) +
                                     " of it tensors");

  if (d.ranks > 1)
    line("exchange",
         human_bytes(static_cast<double>(d.sent_bytes)) + " sent by a process in a step");
  out << weights;
  // The dry run counts one micro-batch; a step has several.
  line("FLOPs a step",
       format("%.3g in matmuls (%.3g by the 6N formula), %.3g in all",
              d.whole_micro_batch.matmul() * micro_batches(c), d.formula_flops * micro_batches(c),
              d.whole_micro_batch.total() * micro_batches(c)));

  const double step_s = f.times.total();
  line("time of a step",
       human_time(step_s) + format(" (%.0f %s/s), ", units_of(c) / step_s, d.unit.c_str()) +
           (f.is_measured ? "measured" : "from a smaller version that was measured") +
           (d.ranks > 1 ? ", each process on a machine like this one, without the exchange" : ""));
  line("",
       format("forward %.0f%%, backward %.0f%%, optimizer %.0f%%", 100 * f.times.forward / step_s,
              100 * f.times.backward / step_s, 100 * f.times.optimizer / step_s));

  if (d.replica.pipeline > 1) {
    const int64_t own = c.train.grad_accum / d.data_ranks();
    const auto waiting = static_cast<double>(d.replica.pipeline - 1);
    line("pipeline bubble",
         format("%.0f%% of the forward and backward passes, with %lld micro-batches per process",
                100 * waiting / (waiting + static_cast<double>(own)), static_cast<long long>(own)));
  }

  // A ceiling of few measurements may be too low, and then MFU is too high.
  bool is_provisional = false;
  if (const auto mfu = mfu_of(c, f, is_provisional)) {
    line("mfu", format("%.0f%%", 100 * *mfu) +
                    (is_provisional ? " (of a ceiling measured less than three times)" : ""));
  }

  line("time of the run", str(human_time(step_s * static_cast<double>(c.train.steps)), " for ",
                              c.train.steps, " steps, evaluation not counted"));

  const auto checkpoint = static_cast<double>(d.checkpoint_bytes);
  line("disk", human_bytes(checkpoint) + " a checkpoint, " +
                   human_bytes(checkpoint * static_cast<double>(most_checkpoints(f))) +
                   " at the most (" + std::to_string(f.kept_checkpoints) +
                   " kept and one being written)");
  if (d.scratch_bytes > 0) {
    line("disk: scratch files",
         human_bytes(static_cast<double>(d.scratch_bytes)) +
             (d.ranks > 1 ? " of each process" : "") +
             " while the run lasts, read and written in each step; the time of a step does not "
             "count that");
  }
  return out.str();
}

Json json_of(const RunConfig& c, const Forecast& f) {
  // Keys that end in _mb are in MiB.
  const auto mb = [](double bytes) { return bytes / (1 << 20); };
  const DryStep& d = f.dry;
  bool is_provisional = false;
  const auto mfu = mfu_of(c, f, is_provisional);
  const double step_s = f.times.total();
  Json memory = Json::object();
  for (const auto& [category, bytes] : memory_by_category(f)) memory[category] = mb(bytes);

  return {{"params", d.parameters},
          {"ranks", d.ranks},
          {"sent_bytes_per_step", d.sent_bytes},
          {"trained_params", d.trained},
          {"peak_rss_mb", mb(static_cast<double>(f.peak_rss()))},
          {"tensors_mb", mb(static_cast<double>(d.tensors()))},
          {"memory_mb", memory},
          {"ms_per_step", 1e3 * step_s},
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

/// Returns what GPUs would take by their data sheets. Each has a copy of the model and its share of
/// the batch.
std::string text_for(const RunConfig& c, const Forecast& f, const std::string& gpus) {
  constexpr double reached = 0.4;        // of the published rate, as well-tuned training reaches
  constexpr double context_bytes = 1e9;  // taken by CUDA and its libraries
  const auto [gpu, n] = parse_gpus(gpus);
  const double rate =
      reached * (compute_dtype(c.amp) == at::kFloat ? gpu.tf32_flops : gpu.bf16_flops);
  const auto count = static_cast<double>(n), trained = static_cast<double>(f.dry.trained);

  // 28 bytes per parameter: the update reads and writes it and two states, and reads its gradient.
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

/// Prints what to change so that the run fits, as options of a command line. Returns Exit::no_fit
/// where nothing is enough. `has_budget`: memory.budget is given, which the limit replaces.
Exit print_fit(const LoadedConfig& loaded, Overrides given, const Forecast& f,
               const std::string& limit, bool has_budget) {
  if (has_budget) given.emplace_back("memory.budget", "");
  const int64_t bytes = limit == "true" ? free_memory() : parse_bytes(limit);
  const auto fit = find_fit(loaded.path, given, f, bytes);
  const std::string within = str(human_bytes(static_cast<double>(bytes)),
                                 limit == "true" ? " (free on this machine)" : "");
  std::cout << "fit                       ";
  if (!fit) {
    std::cout << "nothing brings it within " << within << "; take a smaller model\n";
    return Exit::no_fit;
  }
  if (fit->empty()) {
    std::cout << "it stays within " << within << " as it is\n";
    return Exit::done;
  }

  std::string keys;
  for (const auto& [key, value] : *fit) keys += " --" + key + "=" + value;
  if (has_budget) keys += " --memory.budget=";
  std::cout << "within " << within << " with" << keys << "\n";
  return Exit::done;
}

/// Returns the keys of --chart, "key=value,key=value".
Overrides chart_keys(const std::string& text) {
  Overrides keys;
  for (const std::string& word : comma_list(text)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      fail(Exit::usage,
           "command line: --chart takes keys of the config with their values, such as "
           "memory.recompute=blocks, and ",
           printable_line(word), " is neither");
    }
    keys.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return keys;
}

/// Prints the memory of the config, beside that with the keys of --chart.
Exit print_chart(const Arguments& a, const LoadedConfig& loaded, int ranks) {
  const std::string text = a.get("chart", "");
  const LoadedConfig other = load_with(loaded.path, key_arguments(a), chart_keys(text));
  check_shares(other, ranks);
  check_tensor_ranks(other, ranks);
  // Forecasts leave memory in this process.
  const int64_t program = process_overhead_bytes();
  const auto forecast_of = [&](LoadedConfig of) {
    apply_memory_budget(of, ranks, program);
    Forecast f = forecast(of, ranks);
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

Exit run_plan(const Arguments& a) {
  LoadedConfig loaded = load_config_argument(a);
  resolve_init_from(loaded);
  resolve_adapter_base(loaded);

  const bool json = a.is_true("json");
  const std::string fit = a.get("fit", ""), gpus = a.get("for", "");
  // Refuse wrong options before the forecast, which takes seconds.
  if (!fit.empty() && fit != "true") parse_bytes(fit, "command line: --fit");
  if (!gpus.empty()) parse_gpus(gpus);
  const auto ranks = integer_between(a.get("ranks", "1"), 1, 4096);
  if (!ranks)
    fail(Exit::usage, "command line: --ranks must be a number of processes from 1 to 4096");
  if (*ranks > 1 && (!fit.empty() || !gpus.empty()))
    fail(Exit::usage, "command line: --ranks goes with neither --fit nor --for");
  check_shares(loaded, *ranks);
  check_tensor_ranks(loaded, *ranks);
  if (json && (!fit.empty() || !gpus.empty()))
    fail(Exit::usage, "command line: --json goes with neither --fit nor --for");

  if (a.flags.contains("chart")) {
    if (json || !fit.empty() || !gpus.empty() || asks_for_cluster(a))
      fail(Exit::usage, "command line: --chart excludes --json, --fit, --for and --card");
    return print_chart(a, loaded, static_cast<int>(*ranks));
  }
  if (asks_for_cluster(a)) {
    if (!fit.empty() || !gpus.empty() || a.flags.contains("ranks"))
      fail(Exit::usage, "command line: --card excludes --fit, --for and --ranks");
    return plan_cluster(a, std::move(loaded));
  }

  const bool has_budget = !loaded.config.memory.budget.empty();
  // A search for what fits takes the place of the budget.
  if (!fit.empty()) loaded.config.memory.budget.clear();
  const std::string budget = apply_memory_budget(loaded, *ranks);
  const Forecast f = forecast(loaded, *ranks);
  if (json) {
    std::cout << json_text(json_of(loaded.config, f)) << std::endl;
    return Exit::done;
  }

  if (!budget.empty()) std::cout << budget << "\n";
  std::cout << text_of(loaded.config, f, weight_lines(loaded, *ranks));
  const Exit code =
      fit.empty() ? Exit::done : print_fit(loaded, key_arguments(a), f, fit, has_budget);
  if (!gpus.empty()) std::cout << text_for(loaded.config, f, gpus);
  std::cout << std::flush;
  return code;
}

}  // namespace

Command plan_command() {
  Command command{
      "plan",
      "CONFIG [--section.key=value ...]",
      "Forecast the memory, FLOPs, time and disk space of a run without training it.",
      {"plan configs/gpt2_124m.toml --train.batch_size=4", "plan configs/gpt2_124m.toml --fit 8GB"},
      {{"json", "Print a JSON object instead of a table."},
       {"fit",
        "Print which keys to change so that the run stays within this much memory, such as 8GB. "
        "The exit code is 10 if no change is enough. Default: the free memory of this machine."},
       {"chart",
        "Draw the memory of a step by category, beside that with these keys, such as "
        "memory.recompute=blocks,optim.kind=adamw8bit."},
       {"ranks", "Forecast one of this many processes. Default: 1."},
       {"for",
        "Estimate the time on GPUs that this machine does not have, such as 8xH100, from their "
        "published specifications."}},
      true,
      1,
      1,
      run_plan,
      {"json", "fit"}};
  command.flags.insert(command.flags.end(), cluster_flags().begin(), cluster_flags().end());
  return command;
}

}  // namespace lathe
