#include "train/store/checkpoint.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "autograd/fp8.h"
#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "core/mapped_memory.h"

namespace lathe {
namespace {

void copy_into(const SafetensorsFile& file, const std::string& name, const at::Tensor& to,
               const fs::path& path, const TensorCut* cut = nullptr) {
  const TensorEntry& entry = file.at(name);
  to.copy_(own_tensor(entry, to.sizes(), cut, path));
  // Pages of the file that were read must not add up to a second copy in memory.
  file.release(entry);
  release_pages(to);
}

/// Writes the files of a checkpoint into `temporary`, syncs all, and gives it the name `target`.
void write_files(const fs::path& temporary, const fs::path& target, const RunState& state,
                 const Snapshot& snapshot, const std::vector<TensorEntry>& batches) {
  fault_point("save: begun");
  make_folders(target.parent_path());
  remove_tree(temporary);
  make_folders(temporary);
  fault_point("save: folder made");

  Json files = Json::object();
  const auto note = [&](const char* name, const std::string& sum) {
    files[name] = {{"bytes", fs::file_size(temporary / name)}, {"xxh3", sum}};
  };
  note("model.safetensors", write_safetensors(temporary / "model.safetensors", snapshot.model));
  fault_point("save: model written");
  note("optimizer.safetensors",
       write_safetensors(temporary / "optimizer.safetensors", snapshot.optimizer));
  fault_point("save: optimizer written");
  if (!batches.empty())
    note("batches.safetensors", write_safetensors(temporary / "batches.safetensors", batches));
  write_file_durably(temporary / "state.json", json_text(state_json(state), 1) + "\n");
  note("state.json", file_checksum(temporary / "state.json"));
  fault_point("save: state written");
  write_file_durably(temporary / "manifest.json",
                     json_text(Json{{"format", checkpoint_format}, {"files", files}}, 1) + "\n");
  fault_point("save: manifest written");
  sync_folder(temporary);
  fault_point("save: folder synced");
  move_into_place(temporary, target);
  fault_point("save: renamed");
  sync_folder(target.parent_path());
  fault_point("save: parent synced");
}

}  // namespace

at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path) {
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype || at::IntArrayRef(entry.shape) != sizes) {
    fail(Exit::checkpoint, path.string(), ": tensor \"", entry.name, "\" is ", entry.dtype,
         describe(at::IntArrayRef(entry.shape)), ", the model needs ", describe(sizes));
  }
  return at::from_blob(const_cast<std::byte*>(entry.bytes.data()), entry.shape,
                       at::TensorOptions().dtype(*dtype));
}

at::Tensor own_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const TensorCut* cut,
                      const fs::path& path) {
  return cut == nullptr ? entry_tensor(entry, sizes, path)
                        : cut->part_of(entry_tensor(entry, cut->full_sizes(sizes), path));
}

void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches) {
  const std::string name = target.filename().string();
  const fs::path temporary = target.parent_path() / (unfinished_prefix + name);
  try {
    write_files(temporary, target, state, snapshot, batches);
  } catch (const FileError& e) {
    try {
      remove_tree(temporary);
    } catch (const FileError&) {  // the next start removes it; the first error is the one to report
    }
    std::error_code unknown;
    const auto space = fs::space(target.parent_path().parent_path(), unknown);
    std::string room;
    if (e.is_full()) room = str("; it takes a little over ", snapshot.bytes(), " bytes");
    // Where space() reports enough free bytes, do not print them: the disk may still be full,
    // because of a quota, or of the file system's blocks and its own records.
    const bool is_short = !unknown && space.available <= static_cast<uintmax_t>(snapshot.bytes());
    if (e.is_full() && is_short) room += str(", and ", space.available, " are free");
    throw FileError(e.code(), str("checkpoint ", name, " is not saved: ", e.cause(), room),
                    e.number());
  }
}

fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype) {
  check_finite(parameters, state.step, dtype);
  // Settle first, so that an error of the scratch file is not reported as one of the checkpoint.
  optimizer.settle_offload();
  return store_checkpoint(run, state, view_state(parameters, optimizer, dtype), keep);
}

fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep) {
  const fs::path parent = run / "checkpoints", target = parent / checkpoint_name(state.step);
  write_checkpoint(target, state, snapshot);

  // Old ones lose their names, durably, before they lose their files: a folder named step-N is
  // complete at any moment.
  const auto all = numbered_checkpoints(run);
  std::vector<int64_t> steps;
  for (const auto& [step, path] : all) steps.push_back(step);
  const auto doomed = steps_to_delete(steps, keep, state.best_step);
  try {
    for (const auto& [step, path] : all) {
      if (std::find(doomed.begin(), doomed.end(), step) == doomed.end()) continue;
      rename_file(path, parent / (unfinished_prefix + path.filename().string()));
      fault_point("save: deleting an old one");
    }
    if (!doomed.empty()) sync_folder(parent);
    clean_checkpoints(run);
  } catch (const FileError& e) {  // what is new is safe; the next save tries again
    log_warn("old checkpoints are not deleted: ", e.cause());
  }
  return target;
}

std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config) {
  return config.dtype == "auto" ? std::nullopt : std::optional(dtype_from_config(config.dtype));
}

SavedParameters::SavedParameters(const fs::path& checkpoint, size_t count, Values values)
    : model_path_(checkpoint / "model.safetensors"),
      masters_path_(checkpoint / "optimizer.safetensors"),
      model_(model_path_) {
  if (model_.tensors().size() != count) {
    fail(Exit::checkpoint, model_path_.string(), " has ", model_.tensors().size(),
         " tensors, but the model has ", count);
  }
  if (values == Values::for_training) masters_.emplace(masters_path_);
}

void SavedParameters::read(const NamedParameter& p) const {
  const std::string master = p.path + ".master";
  const TensorCut* const cut = cut_of(p.parameter);
  if (masters_ && masters_->find(master) != nullptr)
    copy_into(*masters_, master, p.parameter.data(), masters_path_, cut);
  else
    copy_into(model_, p.path, p.parameter.data(), model_path_, cut);
}

void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const SavedParameters saved(checkpoint, parameters.size());
  for (const NamedParameter& p : parameters) saved.read(p);
}

void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  const SafetensorsFile file(path);
  for (const auto& p : parameters) {
    if (const auto& fp8 = p.parameter.leaf().precision.fp8; fp8 && fp8->history.defined())
      copy_into(file, p.path + ".fp8_history", fp8->history, path);
  }
}

void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  const SafetensorsFile file(path);
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t, const StatePart& part) {
    const TensorEntry& entry = file.at(name);
    const at::Tensor saved = own_tensor(entry, part.sizes, part.cut.get(), path);
    optimizer.write_state(t, part, saved.view({-1}).narrow(0, part.own.begin, part.own.size()));
    file.release(entry);
  });
}

void check_averages(const RunConfig& config) {
  if (config.optim.ema_decay > 0) return;
  fail(Exit::usage,
       "command line: --weights ema: the run keeps no average of its weights (its optim.ema_decay "
       "is 0); leave --weights out");
}

void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  const SafetensorsFile file(path);
  for (const auto& p : trained)
    copy_into(file, str(p.path, ".", average_name), p.parameter.data(), path);
}

}  // namespace lathe
