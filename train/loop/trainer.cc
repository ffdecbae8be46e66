#include "train/loop/trainer.h"

#include "core/device.h"
#include "core/io/log.h"
#include "core/kernels/gemm.h"
#include "dist/group.h"
#include "dist/world.h"
#include "train/analysis/fit.h"
#include "train/analysis/memory_budget.h"
#include "train/config/path_kind.h"
#include "train/formats/source.h"
#include "train/loop/console.h"
#include "train/loop/run.h"
#include "train/step/shares.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Checks, before any file is changed, that all processes train the same run with the same code.
/// Otherwise their results would differ.
void check_processes_agree(const LoadedConfig& loaded, const Data& data,
                           const std::optional<ResumePoint>& resume) {
  if (world().size() == 1) return;
  const std::string device = open_device(loaded.config.train.device);
  if (device == "cpu" && loaded.config.dist.backend == "nccl") {
    fail(Exit::usage, origin_of(loaded, "dist.backend"),
         ": dist.backend = \"nccl\" exchanges GPU tensors, but this run is on CPUs; set "
         "dist.backend to "
         "\"auto\"");
  }

  // The number of threads may differ between machines, since Lathe's kernels give bitwise equal
  // results for every number.
  RunConfig config = loaded.config;
  config.train.threads = 0;
  world().check_same("the config", config.schema().to_toml(&config, /*comments=*/false));
  world().check_same("the build of lathe", library_checksum());
  world().check_same("the instruction set", cpu_isa());
  world().check_same("the device", device == "cuda" ? device_model(device) : device);
  world().check_same("the data", data.hash());
  // A process may load weights that no other process loads, so compare the checksums of all weights
  // of the sources.
  world().check_same("the source of the weights", source_id(loaded));
  world().check_same("the base of the adapters", base_hash(loaded.base));
  world().check_same("the checkpoint", resume
                                           ? str(resume->checkpoint.filename().string(),
                                                 " with checksum ", content_id(resume->checkpoint))
                                           : std::string("no checkpoint"));
  if (device == "cuda")
    log_info("exchanges of tensors on GPUs use ", world().use_gpus(loaded.config.dist.backend));
}

/// Checks that processes agree on the initial values of the weights that several of them hold. If
/// bits depend on the number of threads, also checks that the processes agree on that number.
void check_models_agree(const Session& session) {
  if (world().size() == 1) return;
  world().check_same_lines("the model", session.checksums);
  world().check_same("the frozen model", session.run_task.frozen_hash);
  if (!gemm_ready(Element::f32))
    world().check_same("train.threads", std::to_string(session.config.train.threads));
}

Exit train_here(const LoadedConfig& given, bool verify_data, bool force) {
  // Open all inputs that the config names before creating any file.
  const LoadedConfig resolved = resolve_sources(given);
  check_tensor_ranks(resolved, world().size());
  RunData data = RunData::open(resolved);
  check_base_tokenizer(data.loaded, *data.data);
  if (verify_data) {
    verify_with_progress(*data.data, resolved.config.data.dir, [] { return stop_signal() != 0; });
    log_info("data      ", resolved.config.data.dir, ": all checksums match");
  }

  // The search within a budget is a collective, whose number of exchanges depends on the config.
  world().check_same("memory.budget", data.loaded.config.memory.budget);
  const BudgetedConfig budget = apply_memory_budget(data.loaded, world().size());
  const LoadedConfig& loaded = budget.loaded;
  if (!budget.text.empty()) log_info(budget.text);

  // Lock a run that has checkpoints before choosing one of them. The folder of a new run is made
  // once everything else is ready.
  const fs::path run = loaded.config.train.out_dir;
  check_output_folder(origin_of(loaded, "train.out_dir") + ": train.out_dir", run, PathKind::run);
  std::optional<FolderLock> lock;
  if (world().is_writer() && fs::exists(run / "checkpoints")) {
    lock.emplace(run);
    restore_replaced(run);
  }
  world().wait_for_all();  // the other ranks list checkpoints only after the writer holds the lock
  const auto resume = find_resume_point(loaded);
  check_processes_agree(loaded, *data.data, resume);

  // Skip the dry run for adapters, since the base would be loaded twice. Open the device first,
  // since ATen must not look for a GPU for the first time during a dry run.
  const bool can_forecast = open_device(loaded.config.train.device) == "cpu" && loaded.base.empty();
  const auto needs = can_forecast ? std::optional(resource_needs(loaded, data)) : std::nullopt;
  if (needs && needs->must_not_start && !force) {
    fail(
        Exit::memory, "the run needs ", needs->text,
        "; `lathe plan CONFIG --fit` prints how to make it fit, and --force true starts it anyway");
  }

  Run trained(loaded, std::move(data), resume);
  check_models_agree(trained.session());
  if (resume && trained.is_finished()) return trained.report_already_finished();
  if (world().is_writer() && !lock) {
    make_folders(run);
    lock.emplace(run);
    if (!list_checkpoints(run).empty()) {
      fail(Exit::busy, "another process has trained in ", run.string(),
           " meanwhile; run the same command again to resume from there");
    }
  }
  return trained.train(lock ? &*lock : nullptr, needs);
}

/// Returns the checkpoints of the runs from which a config takes its weights.
std::vector<fs::path> source_checkpoints(const RunConfig& c) {
  std::vector<fs::path> all;
  for (const std::string& name : {c.train.init_from, c.checkpoint.resume, adapters_of(c).base}) {
    std::error_code unknown;
    if (name.empty() || !fs::is_directory(name, unknown)) continue;
    const auto more = list_checkpoints(name);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

/// Calls train_here(). If a source run is still being trained, it may replace the checkpoint that
/// train_here() is about to load. In that case, calls train_here() again, at most four times.
Exit train_from_sources(const LoadedConfig& loaded, bool verify_data, bool force) {
  for (int attempt = 1;; ++attempt) {
    const auto there = source_checkpoints(loaded.config);
    try {
      return train_here(loaded, verify_data, force);
    } catch (const Error& e) {
      // A run of several processes doesn't try again, since the processes would have to agree on
      // another attempt.
      const bool may_repeat = e.code() == Exit::checkpoint && world().size() == 1 && attempt < 5;
      if (!may_repeat || source_checkpoints(loaded.config) == there) throw;
    }
  }
}

}  // namespace

Exit train(const LoadedConfig& loaded, bool verify_data, bool force) {
  install_stop_handlers("after this step");
  const auto placement = placement_from_environment();
  check_process_count(loaded, placement ? placement->size : 1);
  if (placement) {
    if (loaded.config.train.device != "cpu") choose_gpu(placement->local_rank);
    if (placement->rank > 0) {
      silence_stop_messages();
      set_console_level(Level::warn);
      set_log_prefix(str("rank ", placement->rank, ": "));
    }
  }

  try {
    if (placement) join_world(*placement, loaded.config.dist);
    return train_from_sources(loaded, verify_data, force);
  } catch (const std::exception& e) {
    const auto* error = dynamic_cast<const Error*>(&e);
    if (error != nullptr && error->code() == Exit::peer_lost) throw;
    // All ranks detect an error in the config or a lack of memory, but only one rank prints the
    // error.
    const bool concerns_all =
        error != nullptr && (error->code() == Exit::usage || error->code() == Exit::memory);
    if (!concerns_all) world().report_failure(plain_message(e));
    if (concerns_all && world().first_rank_reports(plain_message(e)))
      throw Error(error->code(), "");
    throw;
  }
}

}  // namespace lathe
