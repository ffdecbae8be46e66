// Formats the tables that `lathe profile` prints.
#include <algorithm>
#include <map>
#include <regex>
#include <sstream>
#include <tuple>

#include "core/io/text.h"
#include "core/timing.h"
#include "train/analysis/profile.h"

namespace lathe {
namespace {

using Phase = Span::Phase;

/// Replaces the index of a block by *, for example in "blocks.3.mlp", which becomes "blocks.*.mlp".
std::string any_block(const std::string& module) {
  static const std::regex number(R"(\.\d+(?=\.|$))");
  return std::regex_replace(module, number, ".*");
}

/// Spans that share a row of the table: the same op in the same phase and in the same module of any
/// block.
struct Row {
  Phase phase;
  std::string op, module;
  double seconds = 0;
  Flops flops{};
  int64_t bytes = 0, count = 0;
  double idle = 0, seconds_of_loops = 0;  ///< summed over the spans whose idle time is known

  /// Returns the idle share of the threads' time, such as "12%"; empty if no idle time is known.
  std::string idle_text(int threads) const {
    return seconds_of_loops > 0 ? format("%.0f%%", 100 * idle / (seconds_of_loops * threads)) : "";
  }
};

/// Returns the rows in descending order of their time.
std::vector<Row> rows_of(const Profile& p) {
  std::map<std::tuple<Phase, std::string, std::string>, Row> rows;
  for (const Span& span : p.spans) {
    const std::string module = any_block(span.module);
    Row& row = rows.try_emplace({span.phase, span.op, module},
                                Row{.phase = span.phase, .op = span.op, .module = module})
                   .first->second;
    row.seconds += span.seconds;
    row.flops += span.flops;
    row.bytes += span.bytes;
    ++row.count;
    if (span.idle >= 0) {
      row.idle += span.idle;
      row.seconds_of_loops += span.seconds;
    }
  }
  std::vector<Row> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return sorted;
}

/// Returns the bytes that each module saved for backward, in descending order.
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

/// Returns a text that names the op at which memory is highest, such as "linear_gelu of
/// blocks.1.mlp, forward".
std::string peak_op_text(const Profile& p) {
  const Span& top = p.spans[p.peak_span];
  return top.op + (top.module.empty() ? "" : " of " + top.module) + ", " + phase_name(top.phase);
}

/// The seconds of all spans, divided by what limits each span.
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

    // Compute the shortest possible time for the matrix products and the memory traffic of the
    // span.
    const double by_flops = span.flops.matmul / ceilings.flops,
                 by_bytes = static_cast<double>(span.bytes) / ceilings.bytes_per_second;
    const double least = std::min(span.seconds, std::max(by_flops, by_bytes));

    // If a span takes at most three times the shortest time, count all of its time as limited by
    // compute or memory. In a slower span, the time beyond the shortest time is overhead, such as
    // the start of the op.
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

  // Idle time is known only for Lathe's own loops, so also print their share of the step.
  const std::vector<Row> costly = rows_of(p);
  Row all{};
  for (const Row& row : costly) {
    all.idle += row.idle;
    all.seconds_of_loops += row.seconds_of_loops;
  }
  if (const std::string idle = all.idle_text(p.threads); !idle.empty())
    out << "; threads were idle " << idle
        << format(" of the time in Lathe's loops (%.0f%% of the step)",
                  100 * all.seconds_of_loops / total);
  out << "\n\n";

  // Calls and times are per step; rates are means over all spans of a row.
  out << format("%-10s%-24s%-28s%8s%9s%7s%12s%10s%9s%7s\n", "", "op", "module", "calls", "ms",
                "share", "GFLOP/s", "of peak", "GB/s", "idle");
  for (size_t i = 0; i < std::min<size_t>(costly.size(), 25); ++i) {
    const Row& row = costly[i];
    // `rate` counts all FLOPs, but only FLOPs of matmuls are compared with the matmul ceiling.
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
      {"matrix products (compute)", limits.compute},
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
      "Data: %.3g MB/s of batches, waiting for %.1f%% of the time, %lld pages read from disk; ",
      static_cast<double>(p.data_bytes) / total / 1e6, 100 * waits,
      static_cast<long long>(p.disk_reads));

  // If the step waits for data and there were page faults, the disk is too slow, and more workers
  // would not help.
  if (waits < 0.05)
    out << "data.workers = " << p.workers << " is enough.\n";
  else if (p.disk_reads > 0)
    out << "the disk is the limit; raise data.prefetch, or keep the data in memory.\n";
  else
    out << "more data.workers than " << p.workers << " would help.\n";

  out << "Memory is highest in " << peak_op_text(p) << ": "
      << format("%.1f MB of tensors\n ",
                static_cast<double>(p.spans[p.peak_span].memory_peak) / 1e6);

  for (size_t i = 0; i < memory_names.size(); ++i) {
    if (p.at_peak.used[i] > 0)
      out << "  " << memory_names[i]
          << format(" %.1f MB", static_cast<double>(p.at_peak.used[i]) / 1e6);
  }

  out << "\nKept for the backward pass of one step:\n";
  const auto owners = kept_by_module(p);
  for (size_t i = 0; i < std::min<size_t>(owners.size(), 10); ++i) {
    out << format("  %-36s%10.2f MB\n",
                  owners[i].first.empty() ? "(outside of modules)" : owners[i].first.c_str(),
                  static_cast<double>(owners[i].second) / steps / 1e6);
  }

  // Compare the last two steps with the first two, so that a single larger step at the start or the
  // end is not reported as a leak.
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

  // `kept` is summed over all profiled steps, but the report shows one step.
  auto kept = kept_by_module(p);
  for (auto& [module, bytes] : kept) {
    if (module.empty()) module = "(outside of modules)";
    bytes /= std::ssize(p.step_seconds);
  }

  // The timeline shows only the first step. Each span has two points, because memory peaks within a
  // span.
  Json timeline = Json::array();
  for (const Span& s : p.spans) {
    if (s.begin >= p.step_seconds.front()) break;
    timeline.push_back({1e3 * s.begin, s.memory_peak});
    timeline.push_back({1e3 * (s.begin + s.seconds), s.memory_after});
  }

  return json_text(Json{{"at", peak_op_text(p)},
                        {"bytes", p.spans[p.peak_span].memory_peak},
                        {"categories", categories},
                        {"kept", kept},
                        {"timeline", timeline}}) +
         "\n";
}

}  // namespace lathe
