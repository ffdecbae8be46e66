// Saves a run: the lengths of its metrics files, its state, and its tensors.
#pragma once

#include "core/io/file.h"
#include "dist/world.h"
#include "train/loop/saver.h"
#include "train/session/session.h"
#include "train/store/sinks.h"

namespace lathe {

class Checkpointer {
 public:
  /// Everything given must outlive it. `lock`: null on a rank that does not write the run folder;
  /// it saves only its tensors, if the state is divided among ranks. `saved_step`: of the run's
  /// newest checkpoint, -1 for none. While alive, copies before each update of the session what a
  /// save in the background has not written yet. A collective.
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
  /// on the disk. A collective.
  void save(bool now);
  /// Does the same unless that step has a checkpoint, and waits for a save in the background. No
  /// rank returns before the writer is done, since a launcher may kill the writer soon after
  /// another rank has ended. A collective.
  void save_last(bool now);
  /// Waits for a save in the background, and checks that the run folder is still this run's. A
  /// collective.
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
