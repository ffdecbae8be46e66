// Keys of [dist]: how the processes of a run exchange gradients.
#pragma once

#include <string>

#include "core/config.h"

namespace lathe {

struct DistConfig {
  LATHE_FIELD(double, timeout, 300.0,
              "several processes: seconds after which a process that does not answer ends the run "
              "(exit 7)",
              between(1, 86400))
  LATHE_FIELD(double, bucket_mb, 25.0,
              "several processes: megabytes of gradients that are exchanged together; changes no "
              "bit",
              between(0.001, 4096))
  LATHE_FIELD(
      std::string, reduce_dtype, "fp32",
      "several processes: how float32 gradients are sent; bf16: as bfloat16, in half of the "
      "bytes, and added up in float32; the bits of a run then depend on the number of "
      "processes and on dist.shard",
      one_of({"fp32", "bf16"}))
  LATHE_FIELD(
      std::string, shard, "none",
      "What is sharded among the processes. optimizer: the optimizer state (ZeRO 1); gradients: "
      "also the gradients (ZeRO 2), which are then exchanged after every micro-batch if the number "
      "of processes is a power of two; parameters: also the parameters of the model's blocks (ZeRO "
      "3), which needs memory.recompute = \"blocks\" or \"selective\". Changes no bit.",
      one_of({"none", "optimizer", "gradients", "parameters"}))
};

}  // namespace lathe
