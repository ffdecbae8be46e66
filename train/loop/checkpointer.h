// Declares Checkpointer, which saves a run: its tensors, its state, and the lengths of its metrics
// files.
#pragma once

#include "core/io/file.h"
#include "dist/world.h"
#include "train/loop/saver.h"
#include "train/session/session.h"
#include "train/store/sinks.h"

namespace lathe {

/// Saves the checkpoints of a run on all of its ranks. Before the session updates parameters,
/// copies the tensors that a background save has not written yet.
class Checkpointer {
 public:
  /// `lock`, `session`, `state` and `metrics` must outlive this object. `lock`: null on a rank that
  /// does not write the run folder. If parameters or optimizer state are divided among ranks, a
  /// rank without the lock saves its own tensors; otherwise it saves nothing. `saved_step`: the
  /// step of the run's newest checkpoint, or -1 if there is none. This call is a collective.
  Checkpointer(const fs::path& run, const FolderLock* lock, Session& session, RunState& state,
               MetricsSinks& metrics, int64_t saved_step)
      : lock_(lock),
        session_(session),
        state_(state),
        metrics_(metrics),
        saver_(run, session.config.checkpoint, saved_step),
        newest_(saved_step) {
    if (divides_state(session.optimizer)) world().open_saving_group();
    session_.before_update = [this] { saver_.before_update(); };
  }
  ~Checkpointer() { session_.before_update = nullptr; }
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Saves the run after step `state.step`. If `now` is true, returns only when the checkpoint is
  /// on the disk. This call is a collective.
  void save(bool now);
  /// Calls save() unless step `state.step` was saved already, and waits for a background save. No
  /// rank returns before all ranks have finished writing, since a launcher such as torchrun may
  /// kill the remaining ranks soon after one rank has ended. This call is a collective.
  void save_last(bool now);
  /// Waits for a background save of this rank.
  void wait() { saver_.wait(); }
  /// Waits for a background save, and checks that the run folder still belongs to this run. This
  /// call is a collective.
  void finish();
  /// Returns the step of the newest checkpoint on the disk.
  int64_t saved_step() { return saver_.saved_step(); }

 private:
  const FolderLock* lock_;
  Session& session_;
  RunState& state_;
  MetricsSinks& metrics_;
  CheckpointSaver saver_;
  int64_t newest_;  // the newest step that was saved, or is being written
};

}  // namespace lathe
