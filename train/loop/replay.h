// Writes and replays bundles of steps that diverged. A bundle holds the run's state before the step
// and the step's data. Replaying the bundle names the first value that is not finite.
//
// A step that diverged changes no parameter, so the state before it can still be saved. With
// memory.update_in_backward, the step may have changed parameters, so no bundle is written.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"
#include "train/session/session.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Returns the micro-batches of step `step` (counted from 0), on the CPU.
std::vector<Batch> batches_of_step(const Session& session, const Data& data, int64_t step);
/// Writes the tensors of micro-batches, stacked: "inputs", "targets" and, if they are defined,
/// "starts", each [micro-batches, B, ...].
void write_batches(const fs::path& file, const std::vector<Batch>& batches);

/// Writes RUN/diverged/step-N and removes older bundles of the run. The bundle has the files of a
/// checkpoint of the state before step `step` (counted from 0), and batches.safetensors. The
/// session's parameters and optimizer must have the values that they had before that step. If
/// divides_state(), all ranks call this function; otherwise, one rank calls it. Returns the
/// bundle's folder.
fs::path write_replay_bundle(const fs::path& run, RunState state, const Session& session,
                             const Data& data, int64_t step);

/// Runs the step of a bundle again. `path` is a bundle, or a run that has one. Returns a text that
/// names the first value that is not finite, if there is one: a parameter, a gradient, or the
/// result of an op. An op is identified by the parameter that it reads. An op that reads no
/// parameter is identified by the last parameter that was read before it. Throws Exit::usage if
/// there is no bundle, and Exit::checkpoint if its files are damaged or its batches don't fit the
/// run.
std::string replay(const fs::path& path);

}  // namespace lathe
