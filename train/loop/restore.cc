#include "train/loop/restore.h"

#include "core/device.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/formats/source.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Sets the number of threads to the saved run's number, unless the command line sets
/// train.threads.
void restore_threads(const RunState& saved, const LoadedConfig& loaded, Session& session) {
  if (origin_of(loaded, "train.threads") != "command line") {
    const int64_t wanted = loaded.config.train.threads;
    if (wanted > 0 && wanted != saved.threads) {
      log_info("threads   ", origin_of(loaded, "train.threads"), " asks for ", wanted,
               ", but a resumed run keeps its ", saved.threads, " (--train.threads=", wanted,
               " changes that, and bits may then differ)");
    }
    session.config.train.threads = saved.threads;
    configure_backend(session.device_name, static_cast<int>(saved.threads),
                      session.config.amp.tf32);
  } else if (session.config.train.threads != saved.threads) {
    log_warn("the run used ", quantity(saved.threads, "thread"), " and resumes with ",
             session.config.train.threads, ": bits may differ");
  }
}

}  // namespace

RestoredRun restore(const ResumePoint& from, const LoadedConfig& loaded, const Data& data,
                    Session& session, RunState& state) {
  const RunState& saved = from.state;
  const RunConfig was = saved_config(saved, from.checkpoint);
  RestoredRun restored{.checkpoint = from.checkpoint,
                       .same_run = from.same_run,
                       .saved_step = from.same_run ? saved.step : -1,
                       .changes = config_changes(was, loaded, saved.step)};

  if (!data.matches(saved.data_hash)) {
    fail(Exit::usage, session.config.data.dir,
         " is not the data that the run was started with (hash ", state.data_hash, " instead of ",
         saved.data_hash,
         "); set data.dir to the run's data, or start a new run in another --train.out_dir");
  }

  // Do not restore the number of threads of a run of several processes, since each of its processes
  // had fewer threads than a single process should have. docs/guide/distributed.md lists the models
  // whose bits do not depend on the number of threads.
  if (world().size() == 1 && saved.processes == 1) restore_threads(saved, loaded, session);
  const std::string model = device_model(session.device_name);
  if (saved.isa != cpu_isa() || saved.device_model != model) {
    log_warn("the run was on ", saved.device_model, " (", saved.isa, ") and resumes on ", model,
             " (", cpu_isa(), "): bits may differ");
  }

  if (adapters_of(was).rank > 0) check_base(loaded.base, was, saved.base_hash);
  check_frozen(session.config, session.task, saved, session.run_task.frozen_hash);
  session.load(from.checkpoint, saved);

  // Keep the hash of the current data. The saved hash may have an older form, which matches the
  // same data. If the checkpoint is from another run, reset the lengths of the metrics files and
  // the evaluations, since this run has neither.
  const std::string hash = state.data_hash;
  state = saved;
  state.data_hash = hash;
  if (!from.same_run) {
    state.metrics_bytes = 0;
    state.sink_bytes.clear();
    state.val_loss = state.best_val_loss = std::nullopt;
    state.val_step = state.best_step = -1;
    state.evaluations_since_best = 0;
  }
  return restored;
}

}  // namespace lathe
