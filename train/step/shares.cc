#include "train/step/shares.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/io/checksum.h"
#include "train/transforms/adapters.h"
#include "train/transforms/tensor_parallel.h"

namespace lathe {
namespace {

/// Returns the numbers as text, such as "1, 2 or 4".
std::string alternatives(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) text += i + 1 == numbers.size() ? " or " : ", ";
    text += std::to_string(numbers[i]);
  }
  return text;
}

/// Throws Exit::usage for keys that stages of a pipeline do not support.
void check_stages(const LoadedConfig& loaded) {
  const RunConfig& c = loaded.config;
  const auto refuse = [&](const char* what, const char* key) {
    fail(Exit::usage, origin_of(loaded, "dist.pipeline"), ": dist.pipeline = ", c.dist.pipeline,
         " does not support ", what, " yet; set dist.pipeline to 1, or change ", key);
  };
  if (c.memory.update_in_backward)
    refuse("updates in the backward pass", "memory.update_in_backward");
  if (c.memory.offloads("parameters")) refuse("parameters on disk", "memory.offload");
  if (c.memory.offloads("activations")) refuse("offloaded activations", "memory.offload");
}

/// Throws Exit::usage if other keys of the config or the number of micro-batches are not supported
/// by stages with several parts (dist.virtual_stages). `groups` groups of processes divide the
/// micro-batches.
void check_virtual_stages(const LoadedConfig& loaded, int64_t groups) {
  const RunConfig& c = loaded.config;
  const int64_t own = c.train.grad_accum / groups;
  const auto refuse = [&](const auto&... why) {
    fail(Exit::usage, origin_of(loaded, "dist.virtual_stages"),
         ": dist.virtual_stages = ", c.dist.virtual_stages, " ", why...);
  };
  if (c.dist.pipeline == 1)
    refuse(
        "needs dist.pipeline of at least 2; set dist.pipeline to 2 or more, or dist.virtual_stages "
        "to 1");
  if (c.dist.shard == "gradients" || c.dist.shard == "parameters") {
    refuse("does not support dist.shard = \"", c.dist.shard,
           "\" yet; set dist.shard to \"optimizer\", or dist.virtual_stages to 1");
  }
  if (own % c.dist.pipeline != 0) {
    refuse("needs a number of micro-batches per process that dist.pipeline = ", c.dist.pipeline,
           " divides, not ", own, "; change train.grad_accum, or set dist.virtual_stages to 1");
  }
}

/// Throws Exit::usage because the size of a replica does not divide the number `all` of processes.
void refuse_grid(const LoadedConfig& loaded, const GridSizes& sizes, int64_t all) {
  const int64_t replica = sizes.replica();
  std::string key, product;  // the first key above 1, and the product of all such keys
  for (const auto& [name, size] : {std::pair("dist.pipeline", sizes.pipeline),
                                   {"dist.context", sizes.context},
                                   {"dist.tensor", sizes.tensor}}) {
    if (size == 1) continue;
    if (key.empty()) key = name;
    product += (product.empty() ? "" : " times ") + std::string(name);
  }
  fail(Exit::usage, origin_of(loaded, key), ": ", product, " = ", replica, " does not divide the ",
       all, " processes; start a multiple of ", replica, ", or change ", key);
}

/// Returns text for an error message that names values of train.grad_accum and train.batch_size.
/// With these values, the processes divide the same global batch, with as few additional
/// micro-batches as possible. Returns "" if there are no such values.
std::string same_global_batch(const RunConfig& config, int64_t processes) {
  const TrainConfig& c = config.train;
  const int64_t global = c.grad_accum * c.batch_size;
  // With dist.virtual_stages, the number of stages must divide each process's number of
  // micro-batches.
  const bool takes_turns = config.dist.pipeline > 1 && config.dist.virtual_stages > 1;
  const int64_t step = processes * (takes_turns ? config.dist.pipeline : 1);
  const int64_t first = (c.grad_accum + step - 1) / step * step,
                last = std::min(global, first + 1'000'000 * step);  // takes a second at most
  for (int64_t accum = first; accum <= last; accum += step) {
    if (global % accum == 0) {
      return str(", or set train.grad_accum = ", accum, " and train.batch_size = ", global / accum,
                 ", which is the same global batch");
    }
  }
  return "";
}

}  // namespace

GridSizes replica_of(const RunConfig& config, int64_t processes) {
  return processes == 1 ? GridSizes() : config.dist.grid();
}

bool can_divide_micro_batches(const RunConfig& c, int64_t processes) {
  const GridSizes sizes = replica_of(c, processes);
  if (processes % sizes.replica() != 0) return false;
  const int64_t groups = processes / sizes.replica();
  if (c.train.grad_accum % groups != 0) return false;
  if (c.memory.update_in_backward && c.train.grad_accum != groups) return false;
  const bool takes_turns = sizes.pipeline > 1 && c.dist.virtual_stages > 1;
  return !takes_turns || c.train.grad_accum / groups % sizes.pipeline == 0;
}

void check_process_count(const LoadedConfig& loaded, int64_t all) {
  const TrainConfig& c = loaded.config.train;
  const GridSizes sizes = replica_of(loaded.config, all);
  const int64_t replica = sizes.replica(), processes = all / replica;
  if (all % replica != 0) refuse_grid(loaded, sizes, all);
  if (sizes.pipeline > 1) check_stages(loaded);
  if (c.sum_order == "sequence" && (processes > 1 || sizes.context > 1)) {
    fail(Exit::usage, origin_of(loaded, "train.sum_order"),
         ": train.sum_order = \"sequence\" adds the gradients of all micro-batches of a step one "
         "after another, which only a single process can do; leave train.sum_order out, or start "
         "one process");
  }
  if (loaded.config.memory.update_in_backward && c.grad_accum != processes) {
    fail(Exit::usage, origin_of(loaded, "memory.update_in_backward"),
         ": memory.update_in_backward needs one micro-batch of a step per ",
         processes > 1 ? "group of processes" : "process",
         ", since accumulated gradients stay in memory between "
         "micro-batches; set train.grad_accum = ",
         processes, ", not ", c.grad_accum, ", or leave memory.update_in_backward out");
  }
  if (c.grad_accum % processes == 0) {
    if (all > 1 && loaded.config.dist.virtual_stages > 1) check_virtual_stages(loaded, processes);
    return;
  }

  std::vector<int64_t> counts;
  for (int64_t n = 1; n <= c.grad_accum && counts.size() < 8; ++n) {
    if (can_divide_micro_batches(loaded.config, n * replica)) counts.push_back(n * replica);
  }

  fail(Exit::usage, origin_of(loaded, "train.grad_accum"), ": the ", c.grad_accum,
       " micro-batches of a step (train.grad_accum) can't be divided equally among ", processes,
       replica > 1 ? str(" groups of ", replica) : "", " processes; ",
       counts.empty() ? "change train.grad_accum" : "start " + alternatives(counts),
       same_global_batch(loaded.config, processes));
}

void check_tensor_ranks(const LoadedConfig& loaded, int64_t processes) {
  const RunConfig& c = loaded.config;
  const int64_t ranks = replica_of(c, processes).tensor;
  if (processes > 1 && c.dist.sequence_parallel && c.dist.tensor == 1) {
    fail(Exit::usage, origin_of(loaded, "dist.sequence_parallel"),
         ": dist.sequence_parallel = true needs dist.tensor of at least 2; set dist.tensor, or "
         "leave "
         "dist.sequence_parallel out");
  }
  if (ranks == 1) return;
  const auto refuse = [&](const auto&... why) {
    fail(Exit::usage, origin_of(loaded, "dist.tensor"), ": dist.tensor = ", ranks, " ", why...);
  };

  const std::vector<LayerCut> rules = layer_cuts_of(c);
  if (rules.empty()) {
    refuse("needs a model kind with rules for cutting its layers, such as gpt or llama, not \"",
           c.model.kind, "\"; set dist.tensor to 1");
  }
  for (const LayerCut& rule : rules) {
    if (rule.units % ranks != 0)
      refuse("does not divide the ", rule.units, " ", rule.unit,
             "; change dist.tensor or the model");
  }

  if (c.memory.offloads("parameters")) {
    refuse(
        "does not support parameters on disk yet; set dist.tensor to 1, or remove \"parameters\" "
        "from ",
        "memory.offload");
  }
  if (c.memory.update_in_backward) {
    refuse("does not support updates in the backward pass yet; set dist.tensor to 1, or leave ",
           "memory.update_in_backward out");
  }
}

std::string library_checksum() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&library_checksum), &info) == 0) return "unknown";
  return file_checksum(info.dli_fname);
}

}  // namespace lathe
