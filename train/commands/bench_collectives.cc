// Implements `lathe bench collectives`: measures the collectives of runs on several processes, and
// c10d's collectives for comparison.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <sstream>

#include "core/device.h"
#include "core/error.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "core/timing.h"
#include "dist/collectives.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/commands/bench.h"
#include "train/commands/table.h"

namespace lathe {
namespace {

/// A collective on tensors of one size, implemented by Lathe and by c10d. `c10d` is null if Lathe
/// passes the tensors to c10d without any change.
struct CollectiveBench {
  std::string name;
  std::function<void()> ours, c10d;
};

/// Returns the median time of `repeats` calls in milliseconds, on the rank where this median is
/// largest. All ranks must call this function.
double median_ms(const std::function<void()>& f, int repeats, const std::string& device) {
  std::vector<double> all;
  world().guarded(f);
  for (int i = 0; i < repeats; ++i) {
    synchronize(device);
    world().wait_for_all();
    const auto begin = Clock::now();
    world().guarded(f);
    synchronize(device);
    all.push_back(1e3 * seconds_since(begin));
  }
  std::nth_element(all.begin(), all.begin() + repeats / 2, all.end());
  const at::Tensor of_ranks =
      world().gather(at::full({1}, all[static_cast<size_t>(repeats / 2)], at::kDouble));
  return of_ranks.max().item<double>();
}

/// Returns the collectives to measure on `elements` float32 elements, which must be a multiple of
/// the number of ranks.
std::vector<CollectiveBench> make_collectives(int64_t elements, at::Device device) {
  const int64_t share = elements / world().size();
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const at::Tensor whole = at::full({elements}, 1.0f, options),
                   part = at::full({share}, 1.0f, options);
  at::Tensor library = at::full({elements}, 0.0f, options), received = at::empty_like(part),
             other = at::empty_like(whole);
  Group& group = world().ops();
  const int ranks = world().size(), rank = world().rank();
  const auto exchange_around = [=, &group]() mutable {
    const auto wait = group.send(part, (rank + 1) % ranks);
    group.receive(received, (rank + ranks - 1) % ranks);
    wait();
  };
  std::vector<int64_t> cuts(static_cast<size_t>(ranks) + 1);
  for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = static_cast<int64_t>(i) * share;
  // The first row sums a tensor in the way in which dist/exchange.h sums gradients.
  std::vector<CollectiveBench> benches{
      {.name = "sum (ordered)",
       .ours = [=] { all_gather(reduce_scatter(whole)); },
       .c10d = [=, &group]() mutable { group.all_reduce_of_c10d(library); }},
      {.name = "reduce-scatter (ordered)",
       .ours = [=] { reduce_scatter(whole); },
       .c10d = [=, &group]() mutable { group.reduce_scatter_of_c10d(received, library); }},
      {.name = "all-gather",
       .ours = [=] { all_gather(part); },
       .c10d = [=, &group] { group.gather(part); }},
      {.name = "all-to-all",
       .ours = [=] { all_to_all(whole); },
       .c10d = [=, &group]() mutable { group.all_to_all(other, library, cuts); }}};
  if (ranks > 1)
    benches.push_back({.name = "send to the next rank", .ours = exchange_around, .c10d = nullptr});
  return benches;
}

}  // namespace

Exit bench_collectives(const Arguments& arguments) {
  const auto placement = placement_from_environment();
  if (!placement) {
    fail(Exit::usage,
         "lathe bench collectives times several processes; start them by `lathe launch -n 2 -- "
         "bench collectives`, torchrun or Slurm");
  }
  const double most = arguments.number("mb", 64, between(1, 4096), true);
  if (placement->rank > 0) {
    set_console_level(Level::warn);
    set_log_prefix(str("rank ", placement->rank, ": "));
  }
  install_allocator();
  const std::string wanted = arguments.get("device", "cpu");
  if (wanted != "cpu") choose_gpu(placement->local_rank);
  const std::string device = open_device(wanted);
  join_world(*placement, DistConfig());
  configure_backend(device, default_threads(), /*tf32=*/false);
  const std::string library =
      device == "cuda" ? world().use_gpus(DistConfig().backend) : std::string("Gloo");

  TextTable table({"MB", "collective", "ms", "MB sent", "GB/s", "c10d ms", "ms / c10d ms"});
  Json rows = Json::array();
  for (double mb = most / 64; mb <= most; mb *= 8) {
    const auto elements = static_cast<int64_t>(1e6 * mb / 4) / world().size() * world().size();
    for (const CollectiveBench& bench :
         make_collectives(elements, device == "cuda" ? at::kCUDA : at::kCPU)) {
      const int repeats = mb > 16 ? 5 : 20;
      const int64_t before = world().bytes_sent();
      const double ms = median_ms(bench.ours, repeats, device);
      const double sent = static_cast<double>(world().bytes_sent() - before) / (repeats + 1);
      const double c10d = bench.c10d ? median_ms(bench.c10d, repeats, device) : 0;

      table.add({format("%.3g", mb), bench.name, format("%.2f", ms), format("%.2f", sent / 1e6),
                 format("%.2f", sent / 1e6 / ms), c10d > 0 ? format("%.2f", c10d) : "",
                 c10d > 0 ? format("%.2f", ms / c10d) : ""});
      Json row{{"mb", mb}, {"collective", bench.name}, {"ms", ms}, {"bytes_sent", sent}};
      if (c10d > 0) row["c10d_ms"] = c10d;
      rows.push_back(row);
    }
  }
  world().wait_for_all();
  if (!world().is_writer()) return Exit::done;

  std::cout << "Collectives of " << world().size() << " processes by " << library
            << ", float32; medians of the slowest process\n\n"
            << table.text() << "\n"
            << json_text(Json{{"processes", world().size()}, {"collectives", rows}}) << std::endl;
  return Exit::done;
}

}  // namespace lathe
