// Defines the config keys of [dist], which decide how the processes of a run divide the work and
// exchange tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "dist/placement.h"

namespace lathe {

/// Returns the numbers in a value of dist.stage_blocks, such as "4,4,3"; nullopt if the text is not
/// a list of positive integers.
std::optional<std::vector<int64_t>> parse_stage_blocks(std::string_view text);

struct DistConfig {
  LATHE_FIELD(double, timeout, 300.0,
              "Seconds to wait for an answer of another process. If none arrives, the run ends "
              "with exit code 7.",
              between(1, 86400))
  LATHE_FIELD(double, bucket_mb, 25.0,
              "Megabytes of gradients that are exchanged together. Does not change the bits of the "
              "results.",
              between(0.001, 4096))
  LATHE_FIELD(
      std::string, reduce_dtype, "fp32",
      "Dtype in which fp32 gradients are sent. bf16 halves the bytes; sums are still computed in "
      "fp32. The bits of the run then depend on the number of processes and on dist.shard.",
      one_of({"fp32", "bf16"}))
  LATHE_FIELD(std::string, backend, "auto",
              "Library that exchanges tensors between GPUs. nccl: NCCL, which needs a GPU for each "
              "process; gloo: Gloo, through the memory of the hosts; auto: nccl if no two "
              "processes share a GPU and the build found NCCL's header, otherwise gloo. CPU "
              "tensors are always exchanged by Gloo. Does not change the bits of the results.",
              one_of({"auto", "gloo", "nccl"}))
  LATHE_FIELD(int64_t, tensor, 1,
              "Number of processes that compute each micro-batch together, each with a part of "
              "every layer (tensor parallelism). Groups of this many processes are data parallel. "
              "Must divide the number of processes; a run of one process ignores this key.",
              between(1, 1024))
  LATHE_FIELD(bool, sequence_parallel, false,
              "Whether the processes of dist.tensor also divide the positions of the residual "
              "stream in the model's blocks, with its norms and dropout (sequence parallelism). "
              "Uses less memory and sends about a quarter more bytes. dist.tensor must then divide "
              "the length of rows (data.window or model.block_size) or, with dist.context, the "
              "number of positions of a row that each process has. Evaluations do not divide rows; "
              "a run of one process ignores this key.",
              anything())
  LATHE_FIELD(
      int64_t, context, 1,
      "Number of processes that compute each micro-batch together, each with a part of the "
      "positions of every row of tokens (context parallelism). Twice this number must divide the "
      "length of rows (data.window or model.block_size). Must divide the number of processes; a "
      "run of one process ignores this key. Evaluations do not divide rows.",
      between(1, 1024))
  LATHE_FIELD(
      int64_t, pipeline, 1,
      "Number of processes that compute each micro-batch one after another, each with some of the "
      "model's blocks (pipeline parallelism). dist.pipeline times dist.context times dist.tensor "
      "must divide the number of processes; a run of one process ignores this key. Does not change "
      "the bits of the results, unless the embedding is tied to the head.",
      between(1, 1024))
  LATHE_FIELD(int64_t, virtual_stages, 1,
              "Number of separate groups of blocks that each stage of a pipeline has "
              "(interleaved pipeline). Above 1, stages wait less at the beginning and at the end "
              "of a step, send proportionally more activations, and evaluate one batch at a time. "
              "dist.pipeline must then divide the number of micro-batches of each process. Does "
              "not change the bits of the results.",
              between(1, 1024))
  LATHE_FIELD(
      std::string, stage_blocks, "auto",
      "Number of blocks of each part of the pipeline, such as \"4,4,3\": as many numbers as "
      "dist.pipeline times dist.virtual_stages. auto: the blocks are divided so that the "
      "largest FLOPs of a part, including those of the head, are as small as possible. A run "
      "of one process ignores this key. Does not change the bits of the results.",
      one_of({"auto"}).or_form("BLOCKS,BLOCKS", [](const std::string& s) {
        return parse_stage_blocks(s).has_value();
      }))
  LATHE_FIELD(
      std::string, shard, "none",
      "What is sharded among the processes. optimizer: the optimizer state (ZeRO 1); gradients: "
      "also the gradients (ZeRO 2), which are then exchanged after every micro-batch if the number "
      "of data-parallel processes is a power of two and dist.context = 1; parameters: also the "
      "parameters of the model's blocks (ZeRO 3), which needs memory.recompute = \"blocks\" or "
      "\"selective\". Does not change the bits of the results if the number of micro-batches of "
      "each process is a power of two.",
      one_of({"none", "optimizer", "gradients", "parameters"}))

  /// Returns the sizes of the grid of processes. A run of one process ignores them.
  GridSizes grid() const {
    return {.pipeline = static_cast<int>(pipeline),
            .context = static_cast<int>(context),
            .tensor = static_cast<int>(tensor)};
  }
};

}  // namespace lathe
