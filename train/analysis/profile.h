// Measures where the time and the memory of training steps go, op by op, with the module that each
// op ran in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/flops.h"
#include "core/memory.h"
#include "train/session/session.h"

namespace lathe {

/// A stretch of a step: the forward or backward of an op, or what runs between ops.
struct Span {
  /// A part of a step.
  enum class Phase : uint8_t { data, forward, recompute, backward, optimizer };
  Phase phase = Phase::forward;
  std::string op{};               ///< "linear_gelu"; "optimizer" or "data" outside of ops
  std::string module{};           ///< "blocks.1.mlp"; "" outside of all modules
  std::string inputs{};           ///< of a forward: dtypes and shapes
  double begin = 0, seconds = 0;  ///< start, since the first profiled step, and duration
  Flops flops{};
  int64_t bytes = 0;         ///< of its inputs and outputs; of a backward, of gradients
  int64_t memory_peak = 0;   ///< peak of all tensors during the span
  int64_t memory_after = 0;  ///< of all tensors at its end
  int64_t kept = 0;          ///< activations that it saved for backward; negative: that it freed
  /// Seconds that threads were idle, summed over them. -1 where the span ran no loop of
  /// core/parallel.h: ATen's own loops are not observed.
  double idle = -1;
};

/// Returns the name, such as "forward".
const char* phase_name(Span::Phase phase);

/// A stretch in which a thread had work.
struct ThreadWork {
  std::string lane{};             ///< "loop", "data worker"
  int thread = 0;                 ///< index in its lane: 0, 1, ...
  double begin = 0, seconds = 0;  ///< start, since the first profiled step, and duration
};

/// Measurements of the steps of a session.
struct Profile {
  std::vector<Span> spans;
  std::vector<ThreadWork> work;  ///< empty on a GPU
  std::vector<double> step_seconds;
  std::vector<int64_t> memory_after_step;  ///< of all tensors: growth from step to step is a leak
  MemoryStats at_peak{};                   ///< at the end of the span with the highest memory
  size_t peak_span = 0;
  int64_t data_bytes = 0;  ///< of all batches
  int64_t disk_reads =
      0;  ///< pages that were not in memory when they were read (major faults of the process)
  int64_t workers = 0;  ///< data.workers
  int threads = 1;      ///< 0 on a GPU, where they have little to do
};

/// Runs steps from 0 up to `first` unobserved, then records each op of the next `count` steps. The
/// session changes as in training.
Profile profile_steps(Session& session, const Data& data, int64_t first, int64_t count);

/// The machine's ceilings, with which spans are compared.
struct Ceilings {
  double flops = 0;             ///< of a matmul in the compute dtype, per second
  double bytes_per_second = 0;  ///< read and written by a copy on all threads
};
/// Measures a copy and a matmul. On a CPU, the cached matmul rate of an earlier measurement is used
/// if there is one.
Ceilings machine_ceilings(const Session& session);

/// Returns a table of the costliest ops, a sentence about what limits the step, and the memory at
/// the peak by category and module.
std::string profile_text(const Profile& profile, const Ceilings& ceilings, const std::string& unit,
                         double units_of_step);
/// Returns the memory of a step for `lathe report` as JSON: "at" names the op where it is highest,
/// and "bytes" is its size there. "categories" at the peak and "kept" for backward by module are
/// lists of [name, bytes], the largest first. "timeline" of the first step is a list of [ms,
/// bytes].
std::string profile_memory(const Profile& profile);

}  // namespace lathe
