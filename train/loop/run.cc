#include "train/loop/run.h"

#include <cmath>

#include "core/device.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "dist/world.h"
#include "train/config/path_kind.h"
#include "train/formats/source.h"
#include "train/loop/console.h"
#include "train/step/forward_passes.h"
#include "train/step/shares.h"
#include "train/transforms/adapters.h"

namespace lathe {

Run::Run(const LoadedConfig& loaded, RunData data, const std::optional<ResumePoint>& resume)
    : data_(std::move(data.data)),
      session_(Session::make_without_values(loaded, *data.task, data.sizes)),
      run_(loaded.config.train.out_dir),
      source_(loaded.source) {
  state_.data_hash = data_->hash();
  // The run may have begun with the weights of another run, whose data determines how inputs are
  // normalized.
  if (resume && resume->state.encoding) data_->normalize_as(*resume->state.encoding);
  if (resume)
    restored_ = restore(*resume, loaded, *data_, session_, state_);
  else
    session_.begin(loaded);

  // An evaluation that was interrupted is not due if the run no longer evaluates.
  if (session_.config.train.eval_interval == 0) state_.eval_due = false;
  // Record "auto" instead of "never", so that the recorded config can resume the run once the run
  // has a checkpoint.
  if (session_.config.checkpoint.resume == "never") session_.config.checkpoint.resume = "auto";
  // Checkpoints record the settings and the hardware that this process trains with.
  state_.base_hash = base_hash(loaded.base);
  state_.frozen_hash = session_.run_task.frozen_hash;
  if (session_.scaler) state_.scaler = session_.scaler->state();
  state_.threads = session_.config.train.threads;
  state_.processes = world().size();
  state_.isa = cpu_isa();
  state_.device_model = device_model(session_.device_name);
  state_.config = session_.config.schema().to_toml(&session_.config, /*comments=*/false);
  // A run that is resumed with the config in its own folder still belongs to the config that
  // started it.
  std::error_code error;
  const bool is_own_record = resume && restored_.same_run && !state_.config_path.empty() &&
                             fs::equivalent(loaded.path, run_ / "config.toml", error);
  if (!is_own_record) state_.config_path = project_path(loaded.path);
  // Settings that came with the weights, such as the chat template, may be missing in the data.
  const auto known = resume ? state_.tokenizer : source_tokenizer(loaded);
  state_.tokenizer = data_->facts().tokenizer;
  if (known && state_.tokenizer && *known == *state_.tokenizer) {
    TokenizerSettings settings = state_.tokenizer->settings();
    const bool has_own_template = !settings.chat_template.empty();
    settings.fill_from(known->settings());
    // The end ids of the weights' source may lack the token that ends a turn of the data's
    // template.
    const int64_t end = state_.tokenizer->marks().end;
    if (has_own_template && end >= 0) settings.add_end_id(end);
    state_.tokenizer->set_settings(std::move(settings));
  }
  state_.task = session_.task.name();
  state_.sizes = session_.sizes;
  state_.encoding = kept_encoding(data_->facts());
}

Exit Run::report_already_finished() const {
  if (world().is_writer()) clean_checkpoints(run_);
  check_last_validation();
  log_summary();
  log_info("nothing to do: ", restored_.same_run ? "the run" : "the run of the checkpoint",
           " ended with ", restored_.checkpoint.string(),
           has_stalled() ? "" : "; raise train.steps to continue",
           restored_.changes.empty() ? "" : "; these keys differ from what was trained:");
  for (const ConfigChange& c : restored_.changes) log_info("  ", c.key, " ", c.was, " -> ", c.is);
  return Exit::done;
}

Exit Run::train(const FolderLock* lock, const std::optional<ResourceNeeds>& needs) {
  MetricsSinks metrics = lock != nullptr ? open_run_folder() : MetricsSinks();
  // Records the end of this process, so that `lathe runs` knows that the run is not running. If the
  // record can't be written, for example because the disk is full, only the error that ended the
  // process is reported.
  const auto record_end = [&](Exit code) {
    try {
      metrics.add_end(state_.step, code);
    } catch (const Error&) {  // `lathe runs` then decides by the age of metrics.jsonl
    }
  };

  try {
    const Exit code = train(metrics, lock, needs);
    record_end(code);
    return code;
  } catch (const Error& e) {
    record_end(e.code());
    throw;
  } catch (...) {
    record_end(Exit::internal);
    throw;
  }
}

/// Trains with open metrics files; see the public function.
Exit Run::train(MetricsSinks& metrics, const FolderLock* lock,
                const std::optional<ResourceNeeds>& needs) {
  const RunConfig& c = session_.config;
  StepReporter reporter(session_, *data_, run_, state_, metrics);
  Checkpointer checkpoints(run_, lock, session_, state_, metrics, restored_.saved_step);
  reporter.wait_for_saves = [&checkpoints] { checkpoints.wait(); };
  StopController stop(c.train.max_time);
  log_start(needs, reporter.mfu_meter());
  note_begin(state_.step);
  note_progress(state_.step, restored_.saved_step);

  // An evaluation that was interrupted runs first, so that metrics.jsonl has the same lines as in
  // an uninterrupted run.
  if (restored_.checkpoint.empty()) state_.eval_due = c.train.eval_interval > 0;
  const bool eval_was_due = state_.eval_due, was_due = eval_was_due || state_.sample_due;
  if (state_.eval_due && !evaluate(metrics, stop)) return save_and_stop(checkpoints, stop);
  if (state_.sample_due) {
    state_.sample_due = c.train.sample_interval > 0 && !sample(metrics, stop);
    if (state_.sample_due) {
      // The existing checkpoint does not contain the evaluation that ran above.
      if (eval_was_due) checkpoints.save(/*now=*/true);
      return save_and_stop(checkpoints, stop);
    }
  }
  if (is_trained()) {
    check_last_validation();
    checkpoints.save(/*now=*/true);
    return finish(checkpoints);
  }
  if (c.train.pause_at > 0 && state_.step >= c.train.pause_at) {
    // The existing checkpoint does not record that the evaluation or the sample is done.
    if (was_due) checkpoints.save(/*now=*/true);
    return save_and_stop(checkpoints, stop);
  }

  const auto begin = Clock::now();
  Loader loader = training_loader(session_, *data_, state_.step);
  reporter.restart_step_timer();

  while (state_.step < c.train.steps) {
    const DueActions due = due_after(state_.step + 1, c);
    auto [result, layers, histograms] = run_one_step(loader, due, reporter);
    ++state_.step;
    state_.tokens += units_of_step(c);
    state_.eval_due = due.evaluate;
    stop.note_progress();
    note_progress(state_.step, checkpoints.saved_step());

    if (!session_.device.is_cuda() || due.needs_results() || result.is_spike)
      reporter.report(result, due.log, std::move(layers));
    if (due.histograms) metrics.add_histograms(state_.step, histograms);
    fault_point("step");

    // If a stop interrupted the evaluation, it remains due and runs first when the run resumes.
    const bool evaluated = due.evaluate && evaluate(metrics, stop);
    const bool improved = evaluated && c.checkpoint.keep_best && state_.best_step == state_.step;
    const bool last = due.last || (evaluated && has_stalled());
    if (last) {
      check_last_validation();
      reporter.report_once(result);
    }

    // Ask all processes together, so that all act on the same answer. An interrupted sample remains
    // due, as an evaluation does.
    bool stopping = stop.agreed();
    if (due.sample) {
      state_.sample_due = stopping || !sample(metrics, stop);
      stopping = stop.agreed();
    }
    if ((due.save || improved || last) && (last || !stopping)) checkpoints.save(last);
    if ((stopping || due.pause) && (!last || state_.eval_due || state_.sample_due)) {
      reporter.report_once(result);
      return save_and_stop(checkpoints, stop);
    }
    if (last) break;
    reporter.restart_step_timer();
  }

  reporter.mfu_meter().measure_for_next_run(seconds_since(begin));
  log_offload(session_);
  return finish(checkpoints);
}

/// Runs the next step, and collects the layer statistics that are due after the step.
Run::StepOutcome Run::run_one_step(Loader& loader, const DueActions& due,
                                   const StepReporter& reporter) try {
  if (!due.layers && !due.histograms) return {run_step(session_, loader, state_.step)};

  const CompleteParameters complete(session_);
  std::optional<LayerStatsCollector> collector;
  if (world().is_writer()) collector.emplace(session_, due.histograms);
  StepOutcome outcome{run_step(session_, loader, state_.step, /*keep_gradients=*/true)};
  if (collector && due.layers) outcome.layers = collector->stats();
  if (collector && due.histograms) outcome.histograms = collector->histograms();
  return outcome;
} catch (const Error& e) {
  // train.detect_anomaly ends a step in the middle of its passes, on one rank only. A replay bundle
  // would then lack the state of the other ranks, so a run of several processes writes no bundle.
  if (e.code() != Exit::diverged || world().size() > 1) throw;
  reporter.keep_failed_step(e, state_.step + 1);
}

/// Prepares the run folder to continue from the checkpoint: removes what a killed process left,
/// records the config, and opens the log and the metrics. Truncates the metrics at the checkpoint's
/// step.
MetricsSinks Run::open_run_folder() {
  fault_point("start: locked");
  clean_checkpoints(run_);
  if (!restored_.checkpoint.empty() && restored_.same_run) quarantine_newer(restored_.checkpoint);

  for (const ConfigChange& change : restored_.changes) {
    log_info("changed since the checkpoint: ", change.key, " ", change.was, " -> ", change.is);
    state_.changes.push_back(change);
  }
  write_config_record(run_, session_.config, state_.changes);
  open_log_file((run_ / "log.txt").string());

  FileLengths lengths = state_.sink_bytes;
  lengths["metrics.jsonl"] = state_.metrics_bytes;
  MetricsSinks metrics(session_.config.log, {.run = run_, .lengths = lengths, .unit = unit_});
  metrics.add_start(state_.step, restored_.checkpoint.string());
  if (!restored_.changes.empty()) metrics.add_changes(state_.step, restored_.changes);
  sync_folder(run_);
  fault_point("start: metrics cut");
  return metrics;
}

void Run::log_start(const std::optional<ResourceNeeds>& needs, const MfuMeter& meter) const {
  log_header(session_, *data_, meter, run_.string(), restored_.checkpoint.string(),
             source_.string());
  if (world().size() > 1) {
    const int64_t all = session_.config.train.grad_accum;
    const int layers = world().tensor().size, parts = world().context().size,
              stages = world().pipeline().size;
    log_info("processes ", world().size(),
             layers > 1 ? str(", in groups of ", layers, " that compute each layer together") : "",
             parts > 1 ? str(", in groups of ", parts, " that divide the positions of rows") : "",
             stages > 1 ? str(", in ", stages, " stages") : "", ", each with ",
             world().share(all).count, " of the ", all, " micro-batches of a step");
  }
  if (!needs) return;
  log(needs->enough ? Level::info : Level::warn,
      "needs     " + needs->text +
          (needs->enough ? "" : "; `lathe plan CONFIG --fit` prints how to make it fit"));
}

/// Evaluates the model and records the result. Returns false if a stop interrupted the evaluation.
bool Run::evaluate(MetricsSinks& metrics, StopController& stop) {
  world().note(state_.step, RankPhase::evaluation);
  const ForwardPasses passes(session_);
  const auto result =
      lathe::evaluate(session_.task, *session_.model, *data_, batch_sizes(session_.config),
                      session_.config.train.eval_batches, session_.compute, session_.device,
                      [&] { return stop.agreed(); });
  if (!result) return false;
  stop.note_progress();
  state_.eval_due = false;

  // A loss that is not finite never replaces the best loss, but a finite loss replaces it if the
  // best loss so far is NaN.
  const double loss = result->loss();
  state_.val_loss = loss;
  state_.val_step = state_.step;
  ++state_.evaluations_since_best;
  if (!state_.best_val_loss || (std::isfinite(loss) && !(loss >= *state_.best_val_loss))) {
    state_.best_val_loss = loss;
    state_.best_step = state_.step;
    state_.evaluations_since_best = 0;
  }

  metrics.add_validation(state_.step, result->metrics);
  log_info("step ", state_.step, "  ", metrics_text(result->metrics), " over ", result->targets,
           " ", unit_);
  return true;
}

/// Throws Exit::diverged if the evaluation after the last step gave a loss that is not finite. Call
/// it before that step is saved, since saving deletes an earlier checkpoint.
void Run::check_last_validation() const {
  if (state_.val_step == state_.step && !std::isfinite(*state_.val_loss))
    end_diverged(session_.config.optim, state_.step, "validation loss", *state_.val_loss);
}

/// Generates a sample and records it. Returns false if a stop interrupted the sample.
bool Run::sample(MetricsSinks& metrics, const StopController& stop) const {
  const CompleteParameters complete(session_);
  const bool samples = world().data().rank == 0 && world().pipeline().rank == 0;
  world().note(state_.step, samples ? RankPhase::sample : RankPhase::wait_for_sample);
  // Tensor ranks run each forward pass together, so none of them may interrupt the sample. They
  // stop after the sample.
  const bool is_together = world().tensor().size > 1;
  std::string text;
  bool is_cut = false;
  if (samples) {
    const ModeGuard guard;
    mode().block_hooks = session_.block_hooks();
    const auto stops = [&] { return is_cut = is_cut || (!is_together && stop.asked()); };
    text = session_.task.sample(*session_.model, *data_, session_.config, session_.compute,
                                session_.device, stops);
  }

  if (world().any(is_cut)) return false;
  if (text.empty() || !world().is_writer()) return true;
  log_info("sample    ", printable(text));  // byte tokens may not form valid UTF-8
  metrics.add_sample(state_.step, text);
  return true;
}

Exit Run::save_and_stop(Checkpointer& checkpoints, const StopController& stop) {
  log_offload(session_);
  checkpoints.save_last(stop.asked() || state_.step == session_.config.train.steps);

  const int64_t pause_at = session_.config.train.pause_at;
  const bool paused = !stop.asked() && pause_at > 0 && state_.step >= pause_at;
  const char* why = "stopped at the request of another process";
  if (stop_signal() != 0) {
    why = "stopped by a signal";
  } else if (stop.is_out_of_time()) {
    why = "stopped by train.max_time";
  } else if (paused) {
    why = "paused by train.pause_at";
  }
  log_info(why, " after step ", state_.step,
           paused ? "; run the same command with another train.pause_at to resume"
                  : "; run the same command again to resume");
  return Exit::stopped;
}

Exit Run::finish(Checkpointer& checkpoints) const {
  checkpoints.finish();
  log_summary();
  return Exit::done;
}

void Run::log_summary() const {
  if (lines_dropped() > 0) {
    log_info(lines_dropped(), " lines could not be shown; ", (run_ / "log.txt").string(),
             " has them");
  }
  if (state_.step < session_.config.train.steps) {
    log_info("stopped early, by train.early_stop: no evaluation since step ", state_.best_step,
             " had a lower validation loss");
  }
  log_info("finished  ", quantity(state_.step, "step"), ", ", state_.tokens, " ", unit_,
           state_.val_loss ? format(", validation loss %.4f (best %.4f)", *state_.val_loss,
                                    *state_.best_val_loss)
                           : "");
  if (!fs::exists(run_)) return;  // this branch had nothing to train
  log_info("run folder ", run_.string());
  if (state_.encoding) log_info("predict    lathe predict ", run_.string(), " FILE");
}

}  // namespace lathe
