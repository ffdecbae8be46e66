// Handles requests to stop a run before its end: signals and train.max_time.
//
// The signal handlers stay installed until the process ends. SIGHUP acts as SIGTERM, unless the
// process was started with SIGHUP ignored, as by `nohup`. While a checkpoint is written, no stop
// signal ends the process. Evaluations check for a request after each batch. The generation of
// samples checks for a request after each token. train.max_time stops a process only after it has
// completed a step or an evaluation, so a run that is restarted again and again still makes
// progress.
#pragma once

#include <signal.h>

#include <cstdint>

namespace lathe {

/// Installs handlers with which SIGINT, SIGTERM, SIGHUP and SIGUSR1 ask the process to stop. If
/// SIGHUP is ignored, it stays ignored. At the first signal, the handler immediately prints
/// "stopping " and `when` to standard error, even if the signal was blocked and pending until now.
/// `when` is text such as "after this step" or "the import", and must stay valid until the process
/// ends. A second SIGINT ends the process with exit code 130 and reports which steps are lost.
/// SIGPIPE is ignored, so output to a closed pipe is dropped.
void install_stop_handlers(const char* when);
/// Blocks the stop signals (core/stop_signals.h) on the thread that created this object, until this
/// object is destroyed. Processes that the thread starts inherit the blocked signals. Such a
/// process keeps the signals blocked, even across exec, until it calls install_stop_handlers() or
/// unblock_stop_signals(). Until then, signals stay pending: none is lost, and none ends the
/// process.
class BlockStopSignals {
 public:
  BlockStopSignals();
  ~BlockStopSignals();
  BlockStopSignals(const BlockStopSignals&) = delete;
  BlockStopSignals& operator=(const BlockStopSignals&) = delete;

 private:
  sigset_t before_;
};
/// Unblocks the stop signals, which the process may have inherited as blocked.
void unblock_stop_signals();
/// Disables the messages about signals in this process. Another process of the run prints them.
void silence_stop_messages();
/// Returns the signal that asked the process to stop, or 0 if there was no such signal.
int stop_signal();
/// Records the last completed step and the step of the newest checkpoint (-1: none), for the
/// message of a second SIGINT.
void note_progress(int64_t step, int64_t saved_step);
/// Sets the step at which a run without checkpoints begins. If `step` is above 0, the run is a
/// branch of another run.
void note_begin(int64_t step);
/// Records the step of the newest checkpoint. May be called on any thread.
void note_saved(int64_t step);

/// Keeps signals from ending the process while a checkpoint is being written. Until this object is
/// destroyed, a second stop signal, even SIGINT, only prints a message.
class DeferSignals {
 public:
  DeferSignals();
  ~DeferSignals();
  DeferSignals(const DeferSignals&) = delete;
  DeferSignals& operator=(const DeferSignals&) = delete;
};

}  // namespace lathe
