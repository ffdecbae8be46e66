// Where the time and the memory of training steps go: op by op, with the module that each ran in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/flops.h"
#include "core/memory.h"
#include "train/run/session.h"

namespace lathe {

/// A stretch of a step: an op's forward or backward, or what stands between.
struct Span {
  /// The part of a step.
  enum class Phase : uint8_t { data, forward, recompute, backward, optimizer };
  Phase phase = Phase::forward;
  std::string op{};               ///< "linear_gelu"; "optimizer", "data" where it is no op
  std::string module{};           ///< "blocks.1.mlp"; "" outside of all modules
  std::string inputs{};           ///< of forward: dtypes and shapes
  double begin = 0, seconds = 0;  ///< since the first profiled step
  Flops flops{};
  int64_t bytes = 0;         ///< of its tensors, once each
  int64_t memory_peak = 0;   ///< of all tensors, at the highest within it
  int64_t memory_after = 0;  ///< of all tensors
  int64_t kept = 0;          ///< activations that it left for backward, or freed where negative
  /// Seconds that threads were without work, summed over them. -1 where it ran no loop of
  /// core/parallel.h: what ATen's own loops do is not seen.
  double idle = -1;
};

/// "forward".
const char* phase_name(Span::Phase phase);

/// A stretch in which a thread had work.
struct ThreadWork {
  std::string lane{};             ///< "loop", "data worker"
  int thread = 0;                 ///< of the lane's: 0, 1, ...
  double begin = 0, seconds = 0;  ///< since the first profiled step
};

/// What steps of a session did.
struct Profile {
  std::vector<Span> spans;
  std::vector<ThreadWork> work;  ///< none on a GPU
  std::vector<double> step_seconds;
  std::vector<int64_t> memory_after_step;  ///< of all tensors: more from step to step is a leak
  MemoryStats at_peak{};                   ///< right after the span with the highest memory
  size_t peak_span = 0;
  int64_t data_bytes = 0;  ///< of batches
  int64_t disk_reads =
      0;  ///< pages that were not in memory when they were read (major faults of the process)
  int64_t workers = 0;  ///< data.workers
  int threads = 1;      ///< 0 on a GPU, where they have little to do
};

/// Runs steps from 0 up to `first` unobserved, then `count` of them, and says what each op took.
/// The session changes as in training.
Profile profile_steps(Session& session, const Data& data, int64_t first, int64_t count);

/// Ceilings of the machine that spans are held against.
struct Ceilings {
  double flops = 0;             ///< of a matmul in the compute dtype, a second
  double bytes_per_second = 0;  ///< read and written by a copy on all threads
};
/// Measures a copy; takes the matmul ceiling that is known, or measures it.
Ceilings machine_ceilings(const Session& session);

/// A table of the costliest, a sentence on what limits, and the memory at the peak by category and
/// module.
std::string profile_text(const Profile& profile, const Ceilings& ceilings, const std::string& unit,
                         double units_of_step);
/// The memory of a step for `lathe report`, as JSON: "at", in which op it is highest, "bytes"
/// there; "categories" there and "kept" for backward by module, lists of [name, bytes], the largest
/// first; "timeline" of the first step, a list of [ms, bytes].
std::string profile_memory(const Profile& profile);

}  // namespace lathe
