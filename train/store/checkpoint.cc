#include "train/store/checkpoint.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>

#include "autograd/fp8.h"
#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "core/mapped_memory.h"
#include "dist/world.h"

namespace lathe {
namespace {

void copy_into(const CheckpointTensors& file, const std::string& name, const at::Tensor& to,
               const TensorCut* cut = nullptr) {
  const TensorEntry& entry = file.at(name);
  to.copy_(own_tensor(entry, to.sizes(), cut, file.path()));
  // Release the pages that were read, since they would add up to a second copy of the tensors in
  // memory.
  file.release(entry);
  release_pages(to);
}

/// Returns the manifest's entry for a file in `folder`.
Json manifest_entry(const fs::path& folder, const std::string& name, const std::string& sum) {
  return {{"bytes", fs::file_size(folder / name)}, {"xxh3", sum}};
}

/// Makes `temporary` an empty folder, and removes a folder that exists there.
void make_new_folder(const fs::path& temporary) {
  make_folders(temporary.parent_path());
  remove_tree(temporary);
  make_folders(temporary);
  fault_point("save: folder made");
}

/// Writes this process's tensors into `temporary`. Returns the manifest's entries for the written
/// files.
Json write_tensors(const fs::path& temporary, const Snapshot& snapshot) {
  Json files = Json::object();
  const int ranks = snapshot.is_divided ? world().size() : 0;
  const auto write = [&](CheckpointPart which, const std::vector<TensorEntry>& entries) {
    const std::string name = tensor_file_name(which, world().rank(), ranks);
    files[name] = manifest_entry(temporary, name, write_safetensors(temporary / name, entries));
  };
  write(CheckpointPart::model, snapshot.model);
  fault_point("save: model written");
  write(CheckpointPart::optimizer, snapshot.optimizer);
  fault_point("save: optimizer written");
  return files;
}

/// Throws Exit::io because this process does not see a file that another rank has written.
[[noreturn]] void fail_as_not_shared(const fs::path& path, int writer) {
  fail(Exit::io, path.string(), ", which rank ", writer, " has written, is missing on ",
       host_name(), "; give train.out_dir a folder that all processes share");
}

/// Throws Exit::io unless this process sees the files that a rank has written.
void check_visible(const fs::path& temporary, const Json& files, int writer) {
  for (const auto& [name, entry] : files.items()) {
    std::error_code error;
    if (fs::file_size(temporary / name, error) != entry.at("bytes").get<uint64_t>())
      fail_as_not_shared(temporary / name, writer);
  }
}

/// Writes the remaining files of the checkpoint into `temporary`. `files` lists the tensor files,
/// which are already written. Syncs all files, and renames the folder to `target`.
void complete_folder(const fs::path& temporary, const fs::path& target, const RunState& state,
                     const Snapshot& snapshot, Json files,
                     const std::vector<TensorEntry>& batches) {
  if (!batches.empty()) {
    constexpr const char* name = "batches.safetensors";
    files[name] = manifest_entry(temporary, name, write_safetensors(temporary / name, batches));
  }
  write_file_durably(temporary / "state.json", json_text(state_json(state), 1) + "\n");
  files["state.json"] =
      manifest_entry(temporary, "state.json", file_checksum(temporary / "state.json"));
  fault_point("save: state written");
  const char* const format = snapshot.is_divided ? divided_checkpoint_format : checkpoint_format;
  write_file_durably(temporary / "manifest.json",
                     json_text(Json{{"format", format}, {"files", files}}, 1) + "\n");
  fault_point("save: manifest written");
  sync_folder(temporary);
  fault_point("save: folder synced");
  move_into_place(temporary, target);
  fault_point("save: renamed");
  sync_folder(target.parent_path());
  fault_point("save: parent synced");
}

/// Runs `work` on every rank, and returns the results of all ranks. If `work` throws on a rank,
/// throws the same error on that rank, and Exit::io on all other ranks. If `is_divided` is false,
/// runs `work` only on this process.
std::vector<std::string> on_all_ranks(bool is_divided, const std::function<std::string()>& work) {
  if (!is_divided) return {work()};
  std::string text;
  std::exception_ptr error;
  try {
    text = "+" + work();
  } catch (const std::exception& e) {
    error = std::current_exception();
    text = str("-rank ", world().rank(), " of ", world().size(), " on ", host_name(),
               " can't save (", e.what(), ")");
  }

  std::vector<std::string> texts = world().gather_texts_of_savers(text);
  if (error) std::rethrow_exception(error);
  for (std::string& one : texts) {
    if (!one.starts_with('+')) {
      fail(Exit::io, printable_line(one.substr(1)),
           "; once the cause is removed, the same command resumes from the newest checkpoint");
    }
    one.erase(0, 1);
  }
  return texts;
}

/// Writes the files of a checkpoint into `temporary`, syncs all files, and renames the folder to
/// `target`.
void write_files(const fs::path& temporary, const fs::path& target, const RunState& state,
                 const Snapshot& snapshot, const std::vector<TensorEntry>& batches) {
  fault_point("save: begun");
  const bool is_writer = !snapshot.is_divided || world().is_writer();
  on_all_ranks(snapshot.is_divided, [&] {
    if (is_writer) make_new_folder(temporary);
    return std::string();
  });
  const std::vector<std::string> written = on_all_ranks(snapshot.is_divided, [&] {
    if (!fs::exists(temporary)) fail_as_not_shared(temporary, /*writer=*/0);
    return json_text(write_tensors(temporary, snapshot));
  });
  // The manifest is written when the tensors of all ranks are on the disk, so that a checkpoint
  // exists completely or not at all.
  on_all_ranks(snapshot.is_divided, [&] {
    if (!is_writer) return std::string();
    Json files = Json::object();
    for (size_t rank = 0; rank < written.size(); ++rank) {
      const Json of_rank = parse_json(written[rank], str("the files of rank ", rank), Exit::io);
      check_visible(temporary, of_rank, static_cast<int>(rank));
      files.update(of_rank);
    }
    complete_folder(temporary, target, state, snapshot, std::move(files), batches);
    return std::string();
  });
}

/// Removes the folder of a checkpoint that could not be completed.
void remove_unfinished(const fs::path& temporary) {
  try {
    remove_tree(temporary);
  } catch (const FileError&) {  // the next start removes the folder; the caller reports the first
                                // error
  }
}

}  // namespace

at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path) {
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype || at::IntArrayRef(entry.shape) != sizes) {
    fail(Exit::checkpoint, path.string(), ": tensor \"", entry.name, "\" is ", entry.dtype,
         describe(at::IntArrayRef(entry.shape)), ", but the model needs ", describe(sizes));
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
    if (!snapshot.is_divided || world().is_writer()) remove_unfinished(temporary);
    std::error_code unknown;
    const auto space = fs::space(target.parent_path().parent_path(), unknown);
    std::string room;
    if (e.is_full()) room = str("; it takes a little over ", snapshot.bytes(), " bytes");
    // If space() reports enough free bytes, do not print their number: the disk may still be full
    // because of a quota, or because of the file system's block size and metadata.
    const bool is_short = !unknown && space.available <= static_cast<uintmax_t>(snapshot.bytes());
    if (e.is_full() && is_short) room += str(", and ", space.available, " are free");
    throw FileError(e.code(), str("checkpoint ", name, " is not saved: ", e.cause(), room),
                    e.number());
  } catch (const Error&) {
    if (snapshot.is_divided && world().is_writer()) remove_unfinished(temporary);
    throw;
  } catch (...) {  // such as std::bad_alloc
    if (!snapshot.is_divided || world().is_writer()) remove_unfinished(temporary);
    throw;
  }
}

fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype) {
  check_finite(parameters, state.step, dtype);
  // First wait for reads and writes of the optimizer's scratch file, so that their errors are not
  // reported as errors of the checkpoint.
  optimizer.settle_offload();
  return store_checkpoint(run, state, view_state(parameters, optimizer, dtype), keep);
}

fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep) {
  const fs::path parent = run / "checkpoints", target = parent / checkpoint_name(state.step);
  write_checkpoint(target, state, snapshot);
  if (snapshot.is_divided && !world().is_writer()) return target;

  // Rename old checkpoints durably before deleting their files, so that a folder named step-N is
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
  } catch (const FileError& e) {  // the new checkpoint is safe; the next save tries again
    log_warn("old checkpoints are not deleted: ", e.cause());
  }
  return target;
}

fs::path copy_complete(const fs::path& checkpoint, const fs::path& run, const RunState& state,
                       const std::function<void()>& before_tensor) {
  const CheckpointTensors model(checkpoint, CheckpointPart::model),
      optimizer(checkpoint, CheckpointPart::optimizer);
  const auto entries_of = [&](const CheckpointTensors& file) {
    std::vector<TensorEntry> entries = file.tensors();
    for (TensorEntry& entry : entries) {
      // The parts of a tensor are joined only when the tensor is written, so that only one tensor
      // at a time is in memory.
      entry.stream = [&file, &before_tensor, name = entry.name](const auto& put) {
        before_tensor();
        const TensorEntry& whole = file.at(name);
        put(whole.bytes);
        file.release(whole);
      };
    }
    return entries;
  };

  const fs::path target = run / "checkpoints" / checkpoint_name(state.step);
  write_checkpoint(target, state,
                   {.model = entries_of(model), .optimizer = entries_of(optimizer), .held = {}});
  return target;
}

std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config) {
  return config.dtype == "auto" ? std::nullopt : std::optional(dtype_from_config(config.dtype));
}

SavedParameters::SavedParameters(const fs::path& checkpoint, size_t count, Values values)
    : model_(checkpoint, CheckpointPart::model) {
  if (model_.tensors().size() != count) {
    fail(Exit::checkpoint, model_.path().string(), " has ", model_.tensors().size(),
         " tensors, but the model has ", count);
  }
  if (values == Values::for_training) masters_.emplace(checkpoint, CheckpointPart::optimizer);
}

void SavedParameters::read(const NamedParameter& p) const {
  const std::string master = p.path + ".master";
  const TensorCut* const cut = cut_of(p.parameter);
  if (masters_ && masters_->find(master) != nullptr)
    copy_into(*masters_, master, p.parameter.data(), cut);
  else
    copy_into(model_, p.path, p.parameter.data(), cut);
}

void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const SavedParameters saved(checkpoint, parameters.size());
  for (const NamedParameter& p : parameters) saved.read(p);
}

void load_fp8_history(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const CheckpointTensors file(checkpoint, CheckpointPart::optimizer);
  for (const auto& p : parameters) {
    if (const auto& fp8 = p.parameter.leaf().precision.fp8; fp8 && fp8->history.defined())
      copy_into(file, p.path + ".fp8_history", fp8->history);
  }
}

void load_optimizer(const fs::path& checkpoint, Optimizer& optimizer) {
  const CheckpointTensors file(checkpoint, CheckpointPart::optimizer);
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t, const StatePart& part) {
    const TensorEntry& entry = file.at(name);
    const at::Tensor saved = own_tensor(entry, part.sizes, part.cut.get(), file.path());
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
  const CheckpointTensors file(checkpoint, CheckpointPart::optimizer);
  for (const auto& p : trained) copy_into(file, str(p.path, ".", average_name), p.parameter.data());
}

}  // namespace lathe
