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

/// A stretch of a step: the forward or backward pass of an op, or the work between ops.
struct Span {
  /// A part of a step.
  enum class Phase : uint8_t { data, forward, recompute, backward, optimizer };
  Phase phase = Phase::forward;
  std::string op{};               ///< "linear_gelu"; "optimizer" or "data" outside of ops
  std::string module{};           ///< "blocks.1.mlp"; "" outside of all modules
  std::string inputs{};           ///< of a forward pass: dtypes and shapes
  double begin = 0, seconds = 0;  ///< start, since the first profiled step, and duration
  Flops flops{};
  int64_t bytes = 0;         ///< size of inputs and outputs; of a backward pass, of gradients
  int64_t memory_peak = 0;   ///< peak memory of all tensors during the span
  int64_t memory_after = 0;  ///< memory of all tensors at its end
  int64_t kept = 0;          ///< bytes of activations saved for backward, minus those freed
  /// Idle seconds, summed over the threads. -1 if the span ran no loop of core/parallel.h, since
  /// ATen's own loops are not observed.
  double idle = -1;
};

/// Returns the name of a phase, such as "forward".
const char* phase_name(Span::Phase phase);

/// A stretch of time in which a thread had work.
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
  MemoryStats at_peak{};                   ///< at the end of the span `peak_span`
  size_t peak_span = 0;                    ///< index of the span with the highest peak memory
  int64_t data_bytes = 0;                  ///< of all batches
  int64_t disk_reads = 0;  ///< pages read from disk on access (the process's major page faults)
  int64_t workers = 0;     ///< data.workers
  int threads = 1;         ///< 0 on a GPU, where CPU threads have little to do
};

/// Runs steps from 0 up to `first` unobserved, then records each op of the next `count` steps. The
/// session changes as in training.
Profile profile_steps(Session& session, const Data& data, int64_t first, int64_t count);

/// The highest rates that the machine reaches, with which the rates of spans are compared.
struct Ceilings {
  double flops = 0;             ///< per second, of a matmul in the compute dtype
  double bytes_per_second = 0;  ///< read and written by a copy on all threads
};
/// Measures the rates of a copy and of a matmul. On a CPU, uses the cached matmul rate of an
/// earlier measurement if there is one.
Ceilings machine_ceilings(const Session& session);

/// Returns a table of the costliest ops, a sentence about what limits the step, and the peak memory
/// by category and by module. `unit` is "tokens" or "samples", of which a step has `units_of_step`.
std::string profile_text(const Profile& profile, const Ceilings& ceilings, const std::string& unit,
                         double units_of_step);
/// Returns the memory of a step for `lathe report` as JSON. "at" names the op with the peak memory,
/// which is "bytes". "categories" (the memory at the peak) and "kept" (the memory that each module
/// saves for backward) are lists of [name, bytes], the largest first. "timeline" is the memory over
/// the first step, a list of [ms, bytes].
std::string profile_memory(const Profile& profile);

}  // namespace lathe
