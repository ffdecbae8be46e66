// Implements the search of `lathe plan --fit`. The search first makes the micro-batch smaller and
// the number of micro-batches larger, which keeps the global batch. It then also tries all
// combinations of other settings, in ascending order of their cost in time. These settings are
// sharding, sequence parallelism and virtual stages (on several processes), precision, how
// activations are kept, the optimizer, updates in backward and the order of sums. The search tries
// offloading to disk last. A dry run measures the memory of each candidate.
#include "train/analysis/fit.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/free_memory.h"
#include "core/io/file.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "dist/world.h"
#include "train/formats/source.h"
#include "train/simulate/hardware.h"
#include "train/step/shares.h"
#include "train/step/update_in_backward.h"

namespace lathe {
namespace {

/// Returns the resident bytes of one process of a run with these keys. The run has as many
/// processes as the run of the forecast `now`. Returns nullopt if the keys contradict each other.
std::optional<int64_t> resident(const std::string& path, const Overrides& given,
                                const Overrides& more, const Forecast& now) {
  try {
    const LoadedConfig loaded = load_with(path, given, more);
    check_process_count(loaded, now.dry.ranks);
    return dry_step(loaded, now.dry.ranks).resident() + now.program_bytes;
  } catch (const Error& e) {
    if (e.code() == Exit::usage) return std::nullopt;
    throw;
  }
}

/// Keys that may make a run take less memory, and their cost: about how many percent longer a step
/// takes (docs/benchmarks/gpt2.md and docs/guide/activations.md). Settings that change what the run
/// learns have a higher cost than this percentage.
struct Setting {
  Overrides keys{};
  double cost = 0;
};
/// Alternative settings, of which a run can have only one. The first alternative changes no keys.
using Alternatives = std::vector<Setting>;

/// Returns the alternative ways to keep activations for a model with this many blocks.
Alternatives activation_settings(const MemoryConfig& c, int64_t blocks) {
  Alternatives all{{}};
  if (c.recompute == "none" && c.saved == "none") {
    all.push_back({{{"memory.saved", "bf16"}}, 4});
    all.push_back({{{"memory.saved", "fp8"}}, 9});
    for (int64_t quarters = 1; blocks > 1 && quarters <= 3; ++quarters) {
      const int64_t last = std::max<int64_t>(blocks * quarters / 4, 1) - 1;
      all.push_back(
          {{{"memory.recompute", str("blocks.0-", last)}}, 6. * static_cast<double>(quarters)});
    }
  }
  for (const auto& [policy, cost] : {std::pair("selective", 7.), {"blocks", 25.}, {"sqrt", 65.}}) {
    if (policy != c.recompute) all.push_back({{{"memory.recompute", policy}}, cost});
  }
  return all;
}

/// Returns the alternatives for each kind of setting in the list at the top of this file, except
/// offloading. resident() detects settings that contradict each other or other keys of the config.
std::vector<Alternatives> settings_to_try(const RunConfig& c, int ranks, int64_t blocks) {
  std::vector<Alternatives> all;
  if (ranks > 1 && c.dist.shard == "none")
    all.push_back({{}, {{{"dist.shard", "optimizer"}}, 1}, {{{"dist.shard", "parameters"}}, 20}});
  if (ranks > 1 && c.dist.tensor > 1 && !c.dist.sequence_parallel)
    all.push_back({{}, {{{"dist.sequence_parallel", "true"}}, 1}});
  // Virtual stages keep more activations, and contradict ZeRO 3.
  if (ranks > 1 && c.dist.virtual_stages > 1)
    all.push_back({{}, {{{"dist.virtual_stages", "1"}}, 5}});

  // Low precision halves activations and makes a step faster, but its copies and casts of the
  // weights take memory.
  if (c.amp.dtype == "fp32") {
    all.push_back(
        {{}, {{{"amp.dtype", "bf16"}}, 1}, {{{"amp.dtype", "bf16"}, {"amp.master", "false"}}, 15}});
  } else {
    all.push_back({{},
                   {{{"amp.working_copies", "false"}, {"amp.cache", "false"}}, 4},
                   {{{"amp.master", "false"}}, 15},
                   {{{"amp.dtype", "fp32"}}, 90}});
  }

  all.push_back(activation_settings(c.memory, blocks));

  // Adafactor needs another learning rate than the config's optimizer.
  Alternatives optimizers{{}};
  if (c.optim.kind == "adam" || c.optim.kind == "adamw") {
    optimizers.push_back({{{"optim.kind", c.optim.kind + "8bit"}}, 15});
    optimizers.push_back({{{"optim.kind", "adafactor"}}, 60});
  }
  all.push_back(optimizers);

  // If gradients are clipped by their norm, updates in backward run each forward and backward pass
  // twice.
  RunConfig updating = c;
  updating.memory.update_in_backward = true;
  const double cost = passes_in_step(updating) == 2 ? 95 : 3;
  if (!c.memory.update_in_backward)
    all.push_back({{}, {{{"memory.update_in_backward", "true"}}, cost}});
  // Adding micro-batches in pairs takes memory for partial sums.
  if (c.train.sum_order == "tree" && c.train.batch_size * c.train.grad_accum > 2)
    all.push_back({{}, {{{"train.sum_order", "sequence"}}, 1}});
  return all;
}

/// Returns all combinations of alternatives in ascending order of their cost.
std::vector<Overrides> combinations(const std::vector<Alternatives>& of) {
  std::vector<Setting> all{{}};
  for (const Alternatives& alternatives : of) {
    std::vector<Setting> longer;
    for (const Setting& so_far : all) {
      for (const Setting& one : alternatives) {
        longer.push_back({so_far.keys, so_far.cost + one.cost});
        longer.back().keys.insert(longer.back().keys.end(), one.keys.begin(), one.keys.end());
      }
    }
    all = std::move(longer);
  }
  std::ranges::stable_sort(all, {}, &Setting::cost);

  std::vector<Overrides> keys;
  for (Setting& one : all) keys.push_back(std::move(one.keys));
  return keys;
}

/// Estimates the smallest memory that any combination needs. Starts with the alternatives that
/// contain a key of `start`. Then replaces the setting of one kind after another by the alternative
/// that needs the least memory, until no alternative needs less. `needs` returns nullopt for keys
/// that contradict each other.
int64_t least_memory(const std::vector<Alternatives>& of, const Overrides& start,
                     const std::function<std::optional<int64_t>(const Overrides&)>& needs) {
  const auto is_in_start = [&](const Setting& one) {
    return std::ranges::find_first_of(one.keys, start) != one.keys.end();
  };
  std::vector<size_t> chosen;
  for (const Alternatives& alternatives : of) {
    const auto found = std::ranges::find_if(alternatives, is_in_start);
    chosen.push_back(found == alternatives.end()
                         ? 0
                         : static_cast<size_t>(std::distance(alternatives.begin(), found)));
  }
  const auto needs_now = [&] {
    Overrides keys;
    for (size_t i = 0; i < of.size(); ++i) {
      const Overrides& one = of[i][chosen[i]].keys;
      keys.insert(keys.end(), one.begin(), one.end());
    }
    return needs(keys).value_or(std::numeric_limits<int64_t>::max());
  };

  int64_t least = needs_now();
  for (int64_t before = 0; before != least;) {
    before = least;
    for (size_t i = 0; i < of.size(); ++i) {
      const size_t best = chosen[i];
      size_t better = best;
      for (chosen[i] = 0; chosen[i] < of[i].size(); ++chosen[i]) {
        if (chosen[i] == best) continue;
        const int64_t bytes = needs_now();
        if (bytes >= least) continue;
        least = bytes;
        better = chosen[i];
      }
      chosen[i] = better;
    }
  }
  return least;
}

/// Returns the smallest result of least_memory() for several starts. Some settings are possible
/// only together with others, so the search reaches them only if it starts with both.
int64_t least_memory(const std::vector<Alternatives>& of,
                     const std::function<std::optional<int64_t>(const Overrides&)>& needs) {
  const std::pair<std::string, std::string> blocks{"memory.recompute", "blocks"};
  return std::min({least_memory(of, {}, needs),
                   least_memory(of, {blocks, {"memory.update_in_backward", "true"}}, needs),
                   least_memory(of, {blocks, {"dist.shard", "parameters"}}, needs)});
}

/// Returns the largest micro-batch that needs no more than `bytes`; nullopt if there is none.
/// `batches`: sizes in descending order. `needs` returns nullopt for a size that the config
/// excludes, such as an odd one for a task with pairs. Calls `needs` more than once for a size.
std::optional<int64_t> largest_that_fits(
    std::vector<int64_t> batches, const std::function<std::optional<int64_t>(int64_t)>& needs,
    int64_t bytes) {
  const auto is_excluded = [&](int64_t batch) { return !needs(batch); };
  const auto fits = [&](int64_t batch) {
    const std::optional<int64_t> needed = needs(batch);
    return needed && *needed <= bytes;
  };

  // A step of more micro-batches keeps more partial sums of gradients. So the current size may fit
  // even if a smaller size, which needs more micro-batches, does not.
  if (fits(batches.front())) return batches.front();
  while (!batches.empty() && is_excluded(batches.back())) batches.pop_back();
  if (batches.empty() || !fits(batches.back())) return std::nullopt;

  // For smaller sizes, assume that the memory grows with the size, so a bisection finds the largest
  // one that fits in few dry runs. An excluded size is replaced by the next smaller size that is
  // not excluded.
  const auto next = [&](const int64_t& batch) {
    const int64_t* const last = &batches.back();
    return *std::find_if_not(&batch, last, is_excluded);
  };
  const auto first = std::partition_point(batches.begin(), batches.end() - 1,
                                          [&](const int64_t& b) { return !fits(next(b)); });
  return next(*first);
}

/// Returns whether two folders are on one disk; true if that is unknown.
bool on_one_disk(const fs::path& a, const fs::path& b) {
  struct stat of_a{}, of_b{};
  return ::stat(a.c_str(), &of_a) != 0 || ::stat(b.c_str(), &of_b) != 0 ||
         of_a.st_dev == of_b.st_dev;
}

/// Returns the bytes that are free on a folder's disk; infinity if that is unknown.
double free_bytes(const fs::path& folder) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return error ? INFINITY : static_cast<double>(space.available);
}

}  // namespace

LoadedConfig load_with(const std::string& path, const Overrides& given, const Overrides& more) {
  Overrides all = given;
  std::erase_if(all, [&](const auto& key) {
    return std::ranges::find(more, key.first, &Overrides::value_type::first) != more.end();
  });
  all.insert(all.end(), more.begin(), more.end());
  return resolve_sources(as_new_run(load_config(path, all)));
}

namespace {

/// The memory and the disk space that the processes of one machine need, and the memory that they
/// have or can still allocate, in bytes.
struct HostNeeds {
  std::string host;
  int processes = 0;
  int64_t memory = 0, scratch = 0, free = 0, resident = 0;
  double share() const { return static_cast<double>(memory) / static_cast<double>(room()); }
  int64_t room() const { return free + resident; }
};

/// Returns the needs of the machine where memory is scarcest. `memory` and `scratch` are the needs
/// of this process in bytes. All processes of the run must call this function.
HostNeeds scarcest_host(int64_t memory, int64_t scratch) {
  std::map<std::string, HostNeeds> hosts;
  for (const std::string& text : world().gather_texts(
           str(host_name(), " ", memory, " ", scratch, " ", free_memory(), " ", rss_bytes()))) {
    HostNeeds one;
    std::istringstream(text) >> one.host >> one.memory >> one.scratch >> one.free >> one.resident;
    HostNeeds& all =
        hosts.try_emplace(one.host, HostNeeds{.host = one.host, .free = one.free}).first->second;
    ++all.processes;
    all.memory += one.memory;
    all.scratch += one.scratch;
    all.resident += one.resident;
    all.free = std::min(all.free, one.free);
  }
  return std::max_element(
             hosts.begin(), hosts.end(),
             [](const auto& a, const auto& b) { return a.second.share() < b.second.share(); })
      ->second;
}

}  // namespace

ResourceNeeds resource_needs(const LoadedConfig& loaded, const RunData& data) {
  const int64_t program = process_overhead_bytes();
  const DryStep d = dry_step_of_this_process(loaded, data);
  const RunConfig& c = loaded.config;
  const HostNeeds host = scarcest_host(d.resident() + program, d.scratch_bytes);
  const auto memory = static_cast<double>(host.memory);

  // The disk must hold one checkpoint more than the run keeps, because an old checkpoint is deleted
  // only after the new one is complete.
  const auto disk = static_cast<double>(d.checkpoint_bytes * (kept_checkpoints(c) + 1));

  // A run reserves the disk space of its scratch file when it starts, and fails if there is too
  // little.
  const auto scratch = static_cast<double>(host.scratch);
  const fs::path run = nearest_folder(c.train.out_dir);
  const fs::path other = c.memory.offload_dir.empty() ? run : nearest_folder(c.memory.offload_dir);
  const bool is_one_disk = on_one_disk(run, other);

  // What the processes need includes the memory that they already have.
  const auto free = static_cast<double>(host.room());
  const double room = free_bytes(run), other_room = free_bytes(other);

  ResourceNeeds needs;
  needs.enough = memory <= free && disk + (is_one_disk ? scratch : 0) <= room &&
                 (is_one_disk || scratch <= other_room);
  // Each process checks the disk of its own scratch file.
  const bool lacks_disk = static_cast<double>(d.scratch_bytes) > (is_one_disk ? room : other_room);
  needs.must_not_start = world().any(memory > 1.5 * free || lacks_disk);
  const std::string of = host.processes > 1 ? str(" for ", host.processes, " processes") : "";
  needs.text = format("about %.2f GB of memory", memory / 1e9) + of +
               (host.processes < world().size() ? " on " + host.host : "") +
               format(" (%.2f GB free), %.2f GB of disk for checkpoints", free / 1e9, disk / 1e9);
  if (!is_one_disk && std::isfinite(room)) needs.text += format(" (%.1f GB free)", room / 1e9);
  if (scratch > 0) needs.text += format(" and %.2f GB for scratch files", scratch / 1e9);
  const double last = is_one_disk ? room : other_room;
  if (std::isfinite(last)) needs.text += format(" (%.1f GB free)", last / 1e9);
  needs.text = world().gather_texts(needs.text)[0];
  return needs;
}

std::optional<Overrides> find_fit(const std::string& path, const Overrides& given,
                                  const Forecast& now, int64_t bytes) {
  if (now.peak_rss() <= bytes) return Overrides{};

  const RunConfig c = load_config(path, given).config;
  const int64_t global = c.train.batch_size * c.train.grad_accum;
  std::vector<int64_t> batches;  // divisors of the global batch, from the current micro-batch down
  for (int64_t b = c.train.batch_size; b >= 1; --b) {
    if (global % b == 0) batches.push_back(b);
  }

  // Keep the global batch size, so that training has the same results.
  const auto with_batch = [&](Overrides change, int64_t batch) {
    change.emplace_back("train.batch_size", std::to_string(batch));
    change.emplace_back("train.grad_accum", std::to_string(global / batch));
    return change;
  };
  // The search measures the same keys several times, so remember the result of each dry run.
  std::map<Overrides, std::optional<int64_t>> known;
  const auto needed = [&](const Overrides& change, int64_t batch) {
    const Overrides keys = with_batch(change, batch);
    const auto [found, is_new] = known.try_emplace(keys);
    if (is_new) found->second = resident(path, given, keys, now);
    return found->second;
  };
  const auto largest = [&](const Overrides& change) -> std::optional<Overrides> {
    const auto needs = [&](int64_t batch) { return needed(change, batch); };
    const auto batch = largest_that_fits(batches, needs, bytes);
    return batch ? std::optional(with_batch(change, *batch)) : std::nullopt;
  };

  // Offloading comes last, since its time depends on the disk.
  Alternatives offloads{{}};
  if (c.memory.offload == "none") {
    for (const char* what : {"activations", "optimizer", "optimizer+activations",
                             "optimizer+parameters", "optimizer+activations+parameters"})
      offloads.push_back({{{"memory.offload", what}}});
  }
  const std::vector<Alternatives> in_memory = settings_to_try(c, now.dry.ranks, now.dry.blocks);
  for (const Setting& offload : offloads) {
    std::vector<Alternatives> kinds = in_memory;
    kinds.push_back({offload});
    // Skip all combinations if even the smallest memory is too much. A small micro-batch needs more
    // partial sums of gradients, so try the current size as well.
    const int64_t least = least_memory(kinds, [&](const Overrides& change) {
      const auto current = needed(change, batches.front());
      std::optional<int64_t> small;  // the memory of the smallest size that is not excluded
      for (size_t i = batches.size(); i-- > 0 && !small;) small = needed(change, batches[i]);
      return small && current ? std::optional(std::min(*small, *current)) : small;
    });
    if (least > bytes) continue;
    for (const Overrides& change : combinations(kinds)) {
      if (auto found = largest(change)) return found;
    }
  }
  return std::nullopt;
}

std::pair<GpuSpec, int64_t> parse_gpus(const std::string& text) {
  // A count has at most six digits, so std::stoll can't overflow.
  const size_t x = text.find('x');
  const bool counted = x != std::string::npos && x > 0 && x < 7 &&
                       std::all_of(
                           text.begin(), text.begin() + static_cast<std::ptrdiff_t>(x),
                           [](unsigned char c) { return std::isdigit(c); });
  const int64_t n = counted ? std::stoll(text.substr(0, x)) : 1;

  // Ignore case and the suffix GB, so that A100-40GB matches the table's a100-40.
  std::string name = lowercase(counted ? text.substr(x + 1) : text), names;
  if (name == "a100") name = "a100-80";
  if (name.ends_with("gb")) name.resize(name.size() - 2);

  for (const GpuModel& gpu : known_hardware().gpus) {
    std::string shown = gpu.name;
    for (char& c : shown) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (gpu.name == name && n > 0) {
      return {{.name = shown,
               .bf16_flops = gpu.bf16_tflops * 1e12,
               .tf32_flops = std::max(gpu.tf32_tflops, gpu.fp32_tflops) * 1e12,
               .memory_bytes = gpu.memory_gb * 1e9,
               .bytes_per_second = gpu.memory_gb_per_second * 1e9},
              n};
    }
    names += (names.empty() ? "" : ", ") + shown;
  }
  fail(Exit::usage, "command line: --for ", text, " is not a known GPU; give one of ", names,
       ", with a count for several, as in 8xH100");
}

}  // namespace lathe
