// Measures how the time and the memory of training steps divide among ops, and in which module each
// op ran.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/flops.h"
#include "core/memory.h"
#include "train/session/session.h"

namespace lathe {

/// A span of a training step: the forward or backward pass of an op, or the work between ops.
struct Span {
  /// The phase of the step to which the span belongs.
  enum class Phase : uint8_t { data, forward, recompute, backward, optimizer };
  Phase phase = Phase::forward;
  std::string op{};               ///< such as "linear_gelu"; outside of ops, "optimizer" or "data"
  std::string module{};           ///< such as "blocks.1.mlp"; empty outside of all modules
  std::string inputs{};           ///< dtypes and shapes of the inputs of a forward pass
  double begin = 0, seconds = 0;  ///< start, in seconds since the first profiled step; duration
  Flops flops{};
  /// Bytes of inputs and outputs; for a backward pass, bytes of gradients.
  int64_t bytes = 0;
  int64_t memory_peak = 0;   ///< peak memory of all tensors during the span
  int64_t memory_after = 0;  ///< memory of all tensors at the end of the span
  int64_t kept = 0;          ///< growth in bytes of activations (on a GPU: of all tensors)
  /// Idle seconds, summed over the threads. -1 if the span ran no loop of core/parallel.h, because
  /// ATen's own loops are not observed.
  double idle = -1;
};

/// Returns the name of a phase, such as "forward".
const char* phase_name(Span::Phase phase);

/// A period in which a thread had work.
struct ThreadWork {
  std::string lane{};             ///< kind of thread, such as "loop" or "data worker"
  int thread = 0;                 ///< index in its lane: 0, 1, ...
  double begin = 0, seconds = 0;  ///< start, in seconds since the first profiled step; duration
};

/// Measurements of the steps of a session.
struct Profile {
  std::vector<Span> spans;
  std::vector<ThreadWork> work;  ///< the work of each thread; empty on a GPU
  std::vector<double> step_seconds;
  /// Bytes of all tensors after each step; growth from step to step is a leak.
  std::vector<int64_t> memory_after_step;
  /// Memory by category at the end of the span `peak_span`.
  MemoryStats at_peak{};
  size_t peak_span = 0;    ///< index of the span with the highest peak memory
  int64_t data_bytes = 0;  ///< bytes of all batches
  int64_t disk_reads = 0;  ///< pages read from disk on access (the process's major page faults)
  int64_t workers = 0;     ///< the value of data.workers
  int threads = 1;         ///< number of CPU threads; 0 on a GPU, where they have little to do
};

/// Runs the steps before `first` unobserved, then records each op of the next `count` steps. The
/// session changes as in training.
Profile profile_steps(Session& session, const Data& data, int64_t first, int64_t count);

/// The highest rates that the machine reaches. The rates of spans are compared with them.
struct Ceilings {
  double flops = 0;             ///< FLOPs per second of a matmul in the compute dtype
  double bytes_per_second = 0;  ///< bytes per second that a copy on all threads reads and writes
};
/// Measures the rates of a copy and of a matmul. On a CPU, uses the matmul rate in the cache if an
/// earlier measurement stored one.
Ceilings machine_ceilings(const Session& session);

/// Returns a table of the costliest ops, a sentence about what limits the step, and the peak memory
/// by category and by module. A step has `units_of_step` tokens or samples; `unit` is "tokens" or
/// "samples".
std::string profile_text(const Profile& profile, const Ceilings& ceilings, const std::string& unit,
                         double units_of_step);
/// Returns the memory of a step as JSON for `lathe report`. "at" names the op at which memory is
/// highest, and "bytes" is that peak. "categories" (the memory at the peak) and "kept" (the memory
/// that each module saves for backward) are lists of [name, bytes], in descending order of bytes.
/// "timeline" is the memory during the first step, a list of [ms, bytes].
std::string profile_memory(const Profile& profile);

}  // namespace lathe
