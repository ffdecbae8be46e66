// An interrupted evaluation is recorded as due and runs first on resume, so metrics.jsonl is
// unchanged.
#include "train/run/trainer.h"

#include <algorithm>
#include <cmath>

#include "core/device.h"
#include "core/dtype.h"
#include "core/io/log.h"
#include "core/io/text.h"
#include "core/memory.h"
#include "core/timing.h"
#include "train/formats/source.h"
#include "train/run/console.h"
#include "train/run/fit.h"
#include "train/run/layers.h"
#include "train/run/peak.h"
#include "train/run/replay.h"
#include "train/run/resume.h"
#include "train/run/saver.h"
#include "train/run/stepper.h"
#include "train/run/stop.h"
#include "train/store/checkpoint.h"
#include "train/store/run_folder.h"
#include "train/store/sinks.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

class Trainer {
 public:
  Trainer(LoadedConfig loaded, RunData data, std::optional<ResumePoint> resume)
      : data_(std::move(data.data)),
        session_(Session::make(loaded, *data.task, data.sizes)),
        run_(loaded.config.train.out_dir),
        source_(loaded.source) {
    state_.data_hash = data_->hash();
    if (resume) go_on(*resume, loaded);
    state_.base_hash = base_hash(loaded.base);
    if (session_.scaler) state_.scaler = session_.scaler->state();
    state_.threads = session_.config.train.threads;
    state_.isa = cpu_isa();
    state_.device_model = device_model(session_.device_name);
    state_.config = session_.config.schema().to_toml(&session_.config, /*comments=*/false);
    state_.config_path = project_path(loaded.path);
    state_.tokenizer = data_->facts().tokenizer;
    state_.task = session_.task.name();
    state_.sizes = session_.sizes;
  }

  /// Whether there is anything left to train or to evaluate.
  bool is_finished() const {
    return state_.step >= session_.config.train.steps && !state_.eval_due;
  }

  /// What a run says that has nothing left to do; its record stays as it is. A last save may have
  /// been cut short.
  Exit report_already_finished() const {
    clean_checkpoints(run_);
    check_last_validation();
    log_summary();
    log_info("nothing to do: the run ended with ", resumed_from_.string(),
             changes_.empty() ? "" : "; these keys differ from what was trained:");
    for (const ConfigChange& c : changes_) log_info("  ", c.key, " ", c.was, " -> ", c.is);
    return Exit::done;
  }

  /// `needs`: told at the start of a run on the CPU.
  Exit run(const FolderLock& lock, const std::optional<ResourceNeeds>& needs) {
    lock_ = &lock;
    const TrainConfig& c = session_.config.train;
    fault_point("start: locked");
    clean_checkpoints(run_);
    if (!resumed_from_.empty() && resumed_same_run_) quarantine_newer(resumed_from_);
    for (const ConfigChange& change : changes_) {
      log_info("changed since the checkpoint: ", change.key, " ", change.was, " -> ", change.is);
      state_.changes.push_back(change);
    }
    write_config_record(run_, session_.config, state_.changes);
    open_log_file((run_ / "log.txt").string());
    FileLengths lengths = state_.sink_bytes;
    lengths["metrics.jsonl"] = state_.metrics_bytes;
    MetricsSinks metrics(session_.config.log, {run_, lengths, unit_});
    metrics.add_start(state_.step, resumed_from_.string());
    if (!changes_.empty()) metrics.add_changes(state_.step, changes_);
    sync_folder(run_);
    fault_point("start: metrics cut");
    log_header(session_, *data_, ceiling_, run_.string(), resumed_from_.string(), source_.string());
    if (needs) {
      log(needs->enough ? Level::info : Level::warn,
          "needs     " + needs->text +
              (needs->enough ? "" : "; `lathe plan CONFIG --fit` says how to make it fit"));
    }
    note_progress(state_.step, saved_step_);
    CheckpointSaver saver(run_, session_.config.checkpoint, saved_step_);
    saver_ = &saver;
    if (resumed_from_.empty()) state_.eval_due = c.eval_interval > 0;
    if (state_.eval_due && !validate(metrics)) return stop(metrics);
    if (state_.step >= c.steps) {  // only its last evaluation was due
      check_last_validation();
      save(metrics);
      return finish();
    }
    if (c.pause_at > 0 && state_.step >= c.pause_at) return stop(metrics);

    const auto begin = Clock::now();
    StepLine line(c.steps, state_.step, static_cast<double>(units_of_step(session_.config)), unit_);
    line_ = &line;
    Loader loader = training_loader(session_, *data_, state_.step);
    last_report_time_ = begin;
    while (state_.step < c.steps) {
      const auto is_due = [&](int64_t every) {
        return every > 0 && (state_.step + 1) % every == 0;
      };
      const bool figures_due = is_due(c.log_interval * session_.config.log.layers),
                 histograms_due = is_due(session_.config.log.histograms);
      std::optional<LayerStatsCollector> watch;
      if (figures_due || histograms_due) watch.emplace(session_, histograms_due);
      const StepResult r = run_step(session_, loader, state_.step);
      layers_ = figures_due ? watch->figures() : std::vector<LayerFigures>();
      const auto histograms = histograms_due ? watch->histograms() : std::vector<Histogram>();
      watch.reset();
      ++state_.step;
      made_progress_ = true;
      note_progress(state_.step, saver.saved_step());
      state_.tokens += units_of_step(session_.config);
      const int64_t interval = session_.config.checkpoint.interval;
      const bool last = state_.step == c.steps, log_due = last || state_.step % c.log_interval == 0;
      const bool sample_due = c.sample_interval > 0 && state_.step % c.sample_interval == 0;
      bool save_due = last || (interval > 0 && state_.step % interval == 0);
      state_.eval_due = c.eval_interval > 0 && (last || state_.step % c.eval_interval == 0);
      // Reading a step's numbers waits for a GPU, so there it is done only where they are needed.
      if (!session_.device.is_cuda() || log_due || sample_due || save_due || state_.eval_due ||
          r.is_spike || stop_asked())
        report(metrics, r, log_due);
      if (histograms_due) metrics.add_histograms(state_.step, histograms);
      fault_point("step");
      if (state_.eval_due && validate(metrics))
        save_due =
            save_due || (session_.config.checkpoint.keep_best && state_.best_step == state_.step);
      if (last) check_last_validation();
      if (sample_due && !stop_asked()) sample(metrics);
      if (save_due && (last || !stop_asked())) save(metrics);
      if ((stop_asked() || state_.step == c.pause_at) && (!last || state_.eval_due)) {
        if (last_report_step_ != state_.step) report(metrics, r, false);
        return stop(metrics);
      }
      if (last_report_step_ == state_.step)
        last_report_time_ = Clock::now();  // what stands between steps is no part of the next
    }
    ceiling_.remember(seconds_since(begin));
    return finish();
  }

 private:
  void go_on(const ResumePoint& from, LoadedConfig& loaded) {
    const RunState& saved = from.state;
    const RunConfig was = saved_config(saved, from.checkpoint);
    changes_ = config_changes(was, loaded, saved.step);
    if (!data_->matches(saved.data_hash)) {
      fail(Exit::usage, session_.config.data.dir,
           " is not the data that the run was started with (hash ", state_.data_hash,
           " instead of ", saved.data_hash,
           "); set data.dir to that, or start a new run in another --train.out_dir");
    }
    if (origin_of(loaded, "train.threads") != "command line") {
      if (const int64_t wanted = loaded.config.train.threads;
          wanted > 0 && wanted != saved.threads) {
        log_info("threads   ", origin_of(loaded, "train.threads"), " asks for ", wanted,
                 ", and a resumed run keeps its ", saved.threads, " (--train.threads=", wanted,
                 " changes them, and the bits)");
      }
      session_.config.train.threads = saved.threads;
      configure_backend(session_.device_name, static_cast<int>(saved.threads),
                        session_.config.amp.tf32);
    } else if (session_.config.train.threads != saved.threads) {
      log_warn("the run used ", saved.threads, " threads and resumes with ",
               session_.config.train.threads, ": bits will differ");
    }
    if (saved.isa != cpu_isa() || saved.device_model != device_model(session_.device_name)) {
      log_warn("the run was on ", saved.device_model, " (", saved.isa, ") and resumes on ",
               device_model(session_.device_name), " (", cpu_isa(), "): bits may differ");
    }
    if (adapters_of(was).rank > 0) check_base(loaded.base, was, saved.base_hash);
    session_.load(from.checkpoint, saved);
    const std::string hash = state_.data_hash;
    state_ = saved;
    state_.data_hash = hash;
    if (!from.same_run) state_.metrics_bytes = 0, state_.sink_bytes.clear();
    resumed_from_ = from.checkpoint;
    resumed_same_run_ = from.same_run;
    last_report_step_ = saved.step;
    if (from.same_run) saved_step_ = saved.step;
    ceiling_ = run_ceiling();
  }

  /// The last step's figures. A run that diverged leaves its step for a second look.
  StepStats read_stats(const StepResult& r) {
    try {
      return read_figures(session_, r);
    } catch (const Error& e) {
      if (e.code() != Exit::diverged) throw;
      try {
        const int64_t failed = session_.optimizer.control().failed_step;
        write_replay_bundle(run_, state_, session_, *data_, failed - 1);
      } catch (const Error& why) {
        log_warn("the step is not kept for `lathe replay`: ", why.what());
        throw e;
      }
      fail(Exit::diverged, e.what(), "; `lathe replay ", run_.string(),
           "` runs the step again and names where it began");
    }
  }

  /// A step that was left out for its loss: said, counted, and its tokens kept.
  void save_spike_batch(const StepStats& f) {
    const fs::path kept = run_ / "spikes" / (checkpoint_name(state_.step) + ".safetensors");
    write_batches(kept, batches_of_step(session_, *data_, state_.step - 1));
    log_warn("step ", state_.step, ": a loss of ", format("%.4f", f.loss), " is a spike above ",
             format("%.4f", session_.spikes->state().mean), " (standard deviation ",
             format("%.4f", std::sqrt(session_.spikes->state().variance)),
             "); its update is left out, its data is in ", kept.string());
  }

  /// Takes the last step's figures, shows them, and writes their line of metrics where `write`.
  void report(MetricsSinks& metrics, const StepResult& r, bool write) {
    const StepStats f = read_stats(r);
    // A loss scaler leaves out steps that are not finite, but no run ends with one.
    if (state_.step == session_.config.train.steps && !std::isfinite(f.loss))
      end_diverged("loss", f.loss);

    const double seconds =
        seconds_since(last_report_time_) / static_cast<double>(state_.step - last_report_step_);
    last_report_time_ = Clock::now();
    last_report_step_ = state_.step;
    state_.updates = f.updates;
    log_skipped_updates(f);
    if (session_.spikes) state_.spikes = session_.spikes->state();
    if (r.is_spike) save_spike_batch(f);
    state_.scaler = f.scaler;
    const auto units = static_cast<double>(units_of_step(session_.config));
    StepMetrics m{.step = state_.step,
                  .updates = state_.updates,
                  .loss = f.loss,
                  .lr = r.lr,
                  .grad_norm = f.grad_norm,
                  .units = state_.tokens,
                  .units_per_sec = units / seconds,
                  .step_ms = 1e3 * seconds,
                  .mfu = ceiling_.share(flops_per_unit_ * units / seconds),
                  .data_wait_ms = 1e3 * r.data_wait_s,
                  .memory_bytes = memory_bytes(),
                  .loss_scale = f.loss_scale,
                  .skipped = f.scaler ? f.scaler->skipped : 0,
                  .spikes = state_.spikes ? state_.spikes->skipped : 0,
                  .updates_lost = f.updates_lost,
                  .layers = std::move(layers_)};
    if (write) {
      add_memory_peaks(m);
      metrics.add(m);
    }
    line_->show(m, seconds, write);
  }

  void log_skipped_updates(const StepStats& f) const {
    if (!f.scaler || !state_.scaler || f.scaler->skipped == state_.scaler->skipped) return;
    log_info("step ", state_.step, ": ", f.scaler->skipped - state_.scaler->skipped,
             " skipped for gradients that are not finite, loss scale now ",
             format("%.10g", f.scaler->scale));
  }

  int64_t memory_bytes() const {
    return session_.device.is_cuda() ? cuda_api().memory_peak() : memory_stats().total_peak;
  }

  /// What each category held at the most, where that has changed.
  void add_memory_peaks(StepMetrics& m) {
    if (session_.device.is_cuda()) return;
    const auto peak = memory_stats().peak;
    if (peak == last_reported_peaks_) return;
    last_reported_peaks_ = peak;
    for (size_t i = 0; i < peak.size(); ++i) {
      if (peak[i] > 0) m.memory.emplace_back(memory_names[i], peak[i]);
    }
  }

  bool stop_asked() const {
    const double limit = session_.config.train.max_time;
    return stop_signal() != 0 || (limit > 0 && process_age() >= limit);
  }

  /// False where a request to stop cut it short: the step's evaluation is still due.
  bool validate(MetricsSinks& metrics) {
    const auto r =
        evaluate(session_.task, *session_.model, *data_, batch_sizes(session_.config),
                 session_.config.train.eval_batches, session_.compute, session_.device,
                 [this] { return stop_signal() != 0 || (made_progress_ && stop_asked()); });
    if (!r) return false;
    made_progress_ = true;
    state_.eval_due = false;
    state_.val_loss = r->loss();
    state_.val_step = state_.step;
    // A loss that is not finite is no better than any other, and worse than a finite one.
    if (!state_.best_val_loss ||
        (std::isfinite(r->loss()) && !(r->loss() >= *state_.best_val_loss))) {
      state_.best_val_loss = r->loss();
      state_.best_step = state_.step;
    }
    metrics.add_validation(state_.step, r->metrics);
    log_info("step ", state_.step, "  ", metrics_text(r->metrics), " over ", r->targets, " ",
             unit_);
    return true;
  }

  /// Exit::diverged where the evaluation after the run's last step gave a loss that is not finite.
  /// It comes before that step is saved, so that no earlier checkpoint gives way to weights that
  /// are of no use.
  void check_last_validation() const {
    if (state_.val_step == state_.step && !std::isfinite(*state_.val_loss))
      end_diverged("validation loss", *state_.val_loss);
  }

  [[noreturn]] void end_diverged(const char* what, double value) const {
    fail(Exit::diverged, "step ", state_.step, ", the last, diverged: ", what, " ", value,
         diverged_remedy);
  }

  Exit stop(MetricsSinks& metrics) {
    // Stopped again before anything was done: the checkpoint that this process began with says it
    // all.
    if (saved_step_ != state_.step) save(metrics);
    saver_->finish();
    const TrainConfig& c = session_.config.train;
    const bool paused = !stop_asked() && c.pause_at > 0 && state_.step >= c.pause_at;
    log_info(stop_signal() != 0 ? "stopped by a signal"
             : paused           ? "paused by train.pause_at"
                                : "stopped by train.max_time",
             " after step ", state_.step,
             paused ? "; run it again with another train.pause_at to resume"
                    : "; run the same command again to resume");
    return Exit::stopped;
  }

  void sample(MetricsSinks& metrics) const {
    const std::string text =
        session_.task.sample(*session_.model, *data_, session_.config, session_.compute,
                             session_.device, [this] { return stop_asked(); });
    if (text.empty()) return;
    log_info("sample    ", text);
    metrics.add_sample(state_.step, text);
  }

  void save(MetricsSinks& metrics) {
    FileLengths lengths;
    metrics.add_lengths(lengths);
    state_.metrics_bytes = lengths.extract("metrics.jsonl").mapped();
    for (const auto& [file, bytes] : lengths)
      state_.sink_bytes[file] = bytes;  // of sinks that are off: as it was
    const auto before = [this, &metrics] {
      lock_->check_in_place();
      metrics.sync();
    };
    const bool last = state_.step == session_.config.train.steps || stop_asked();
    saver_->save(state_, session_.saved, session_.optimizer, before, last);
    saved_step_ = state_.step;
  }

  MfuBaseline run_ceiling() const {
    return {session_.device_name, static_cast<int>(session_.config.train.threads),
            session_.compute.dtype};
  }

  Exit finish() const {
    saver_->finish();
    lock_->check_in_place();
    log_summary();
    return Exit::done;
  }

  void log_summary() const {
    if (lines_dropped() > 0)
      log_info(lines_dropped(), " lines could not be shown; ", (run_ / "log.txt").string(),
               " has them");
    log_info("finished  ", state_.step, " steps, ", state_.tokens, " ", unit_,
             state_.val_loss ? format(", validation loss %.4f (best %.4f)", *state_.val_loss,
                                      *state_.best_val_loss)
                             : "");
    log_info("run folder ", run_.string());
  }

  std::unique_ptr<Data> data_;
  Session session_;
  std::string unit_ = session_.task.unit();
  double flops_per_unit_ = session_.model->flops_per_unit();
  fs::path run_;
  fs::path source_;  // of the weights that it begins with, or empty
  RunState state_;
  fs::path resumed_from_;  // a checkpoint, or empty
  bool resumed_same_run_ = true;
  std::vector<ConfigChange> changes_;  // that this process brings
  int64_t saved_step_ = -1;            // of the run's newest checkpoint, whole or being written
  bool made_progress_ =
      false;  // a step or an evaluation: less than that train.max_time leaves to no process
  const FolderLock* lock_ = nullptr;
  CheckpointSaver* saver_ = nullptr;
  MfuBaseline ceiling_ = run_ceiling();
  StepLine* line_ = nullptr;
  std::vector<LayerFigures> layers_;  // of the last step, where it was looked at closely
  decltype(MemoryStats::peak) last_reported_peaks_{};  // what metrics.jsonl has
  int64_t last_report_step_ = 0;                       // the last step that was looked at, and when
  Clock::time_point last_report_time_{};
};

}  // namespace

Exit train(LoadedConfig loaded, bool verify_data) {
  install_stop_handlers("after this step");
  resolve_init_from(loaded);
  resolve_adapter_base(loaded);
  RunData data = RunData::open(loaded);
  check_base_tokenizer(loaded, *data.data);
  if (verify_data) {
    verify_shown(*data.data, loaded.config.data.dir, [] { return stop_signal() != 0; });
    log_info("data      ", loaded.config.data.dir, " is what was written");
  }
  // A run that has checkpoints is locked before one is chosen; a new one's folder is made once all
  // else is ready.
  const fs::path run = loaded.config.train.out_dir;
  std::optional<FolderLock> lock;
  if (fs::exists(run / "checkpoints")) lock.emplace(run);
  auto resume = find_resume_point(loaded);
  const bool goes_on = resume.has_value();
  // What stands on another run would have to be loaded twice. The device comes first: what a dry
  // run asks of ATen must not be its first look for a GPU.
  const bool can_tell = open_device(loaded.config.train.device) == "cpu" && loaded.base.empty();
  const std::optional<ResourceNeeds> needs =
      can_tell ? std::optional(resource_needs(loaded, data)) : std::nullopt;
  Trainer trainer(std::move(loaded), std::move(data), std::move(resume));
  if (goes_on && trainer.is_finished()) return trainer.report_already_finished();
  if (!lock) {
    make_folders(run);
    lock.emplace(run);
    if (!list_checkpoints(run).empty()) {
      fail(Exit::busy, "another process has trained in ", run.string(),
           " meanwhile; run the same command again to resume from there");
    }
  }
  return trainer.run(*lock, needs);
}

}  // namespace lathe
