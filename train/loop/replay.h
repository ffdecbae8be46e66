// Writes a bundle of a step that went wrong: the run's state before it and the data that it saw.
// Replaying the bundle names the op where the error began.
//
// A step that diverged changes nothing, so the state before it and its data can still be saved.
// With memory.update_in_backward it has changed parameters, and there is no bundle.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"
#include "train/session/session.h"
#include "train/store/checkpoint.h"

namespace lathe {

/// Returns the micro-batches of step `step` (from 0), on the CPU.
std::vector<Batch> batches_of_step(const Session& session, const Data& data, int64_t step);
/// Writes micro-batches as "inputs", "targets" and, where they are defined, "starts", each
/// [micro-batches, B, ...].
void write_batches(const fs::path& file, const std::vector<Batch>& batches);

/// Writes RUN/diverged/step-N and removes older bundles of the run. The bundle has the files of a
/// checkpoint of the state before step `step` (from 0), and batches.safetensors. The session's
/// parameters and optimizer must be what they were before that step. All ranks call it if
/// divides_state(), else one does. Returns the bundle's folder.
fs::path write_replay_bundle(const fs::path& run, RunState state, const Session& session,
                             const Data& data, int64_t step);

/// Runs the step of a bundle (or of a run's bundle) again. Returns a text that names the first
/// value that is not finite, if there is one: a parameter, a gradient, or the result of an op,
/// which is named by its parameter or else by the last parameter that an op read. Throws
/// Exit::usage where there is no bundle, and Exit::checkpoint where its files are damaged or its
/// batches can't be those of its run.
std::string replay(const fs::path& path);

}  // namespace lathe
