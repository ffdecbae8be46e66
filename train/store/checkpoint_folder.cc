#include "train/store/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>

#include "core/io/checksum.h"
#include "core/io/json.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/text.h"
#include "train/config/path_kind.h"
#include "train/store/run_folder.h"
#include "train/store/run_state.h"

namespace lathe {
namespace {

void quarantine_unusable(const fs::path& checkpoint) {
  move_to_backup(checkpoint,
                 checkpoint.parent_path() / ("unusable-" + checkpoint.filename().string()));
}

/// Returns the name under which move_into_place() briefly keeps a checkpoint that it replaces.
std::string replaced_name(const std::string& checkpoint) {
  return unfinished_prefix + ("replaced-" + checkpoint);
}

/// Returns the name of the checkpoint at a path, even if the path has the name that replaced_name()
/// gives to the checkpoint. Returns "" for other paths.
std::string checkpoint_name_of(const fs::path& path) {
  std::string name = path.filename().string();
  if (const std::string before = replaced_name(""); name.starts_with(before))
    name.erase(0, before.size());
  const bool numbered = name.size() >= 13 && name.starts_with("step-") &&
                        name.find_first_not_of("0123456789", 5) == std::string::npos;
  return numbered ? name : "";
}

/// Returns whether a path holds the only copy of its checkpoint, whose second save was interrupted.
bool is_only_copy(const fs::path& path) {
  const std::string name = checkpoint_name_of(path);
  return !name.empty() && path.filename() != name && !fs::exists(path.parent_path() / name);
}

bool is_intact(const fs::path& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Returns the step at the beginning of a checkpoint's state.json; nullopt if the file does not
/// begin as Lathe writes it. Reads only the beginning, since the complete file holds the tokenizer,
/// which takes seconds to read.
std::optional<int64_t> first_step(const fs::path& checkpoint) {
  std::error_code none;
  // Opening a pipe would wait for its other end.
  if (!fs::is_regular_file(checkpoint / "state.json", none)) return std::nullopt;
  std::ifstream file(checkpoint / "state.json", std::ios::binary);
  std::string begin(256, '\0');
  file.read(begin.data(), std::ssize(begin));
  begin.resize(static_cast<size_t>(file.gcount()));
  std::erase_if(begin, [](char c) { return c == ' ' || c == '\n'; });

  const std::string key = "{\"step\":";
  int64_t step = 0;
  if (!begin.starts_with(key)) return std::nullopt;
  const char* const end = begin.data() + begin.size();
  const auto [after, error] = std::from_chars(begin.data() + key.size(), end, step);
  const bool is_complete = error == std::errc() && after != end && *after == ',';
  return is_complete && step >= 0 ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  return format("step-%08lld", static_cast<long long>(step));
}

int64_t step_of(const fs::path& checkpoint) {
  if (const auto step = first_step(checkpoint)) return *step;
  try {
    return read_state(checkpoint).step;
  } catch (const Error&) {
    const std::string name = checkpoint_name_of(checkpoint);
    return std::atoll(name.c_str() + std::min(name.size(), std::string("step-").size()));
  }
}

std::vector<std::pair<int64_t, fs::path>> numbered_checkpoints(const fs::path& run) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const auto& path : list_folder(run / "checkpoints")) {
    const std::string name = checkpoint_name_of(path);
    if (!name.empty() && (path.filename() == name || is_only_copy(path)))
      found.emplace_back(step_of(path), path);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> paths;
  for (auto& [step, path] : numbered_checkpoints(run)) paths.push_back(std::move(path));
  return paths;
}

void quarantine_newer(const fs::path& checkpoint) {
  const int64_t own = step_of(checkpoint);
  for (const auto& [step, other] : numbered_checkpoints(checkpoint.parent_path().parent_path())) {
    if (step > own) quarantine_unusable(other);
  }
}

void restore_replaced(const fs::path& run) {
  for (const auto& path : list_folder(run / "checkpoints")) {
    if (is_only_copy(path)) rename_file(path, path.parent_path() / checkpoint_name_of(path));
  }
}

void clean_checkpoints(const fs::path& run) {
  for (const auto& path : list_folder(run / "checkpoints")) {
    if (!path.filename().string().starts_with(unfinished_prefix)) continue;
    try {
      remove_tree(path);
    } catch (const FileError& e) {
      log_warn(path.filename().string(), " could not be removed: ", e.cause(),
               "; it is no longer needed and can be removed by hand");
    }
  }
}

void move_into_place(const fs::path& written, const fs::path& target) {
  if (fs::exists(target) && !is_intact(target)) quarantine_unusable(target);
  if (!fs::exists(target)) return rename_file(written, target);

  const fs::path replaced = target.parent_path() / replaced_name(target.filename().string());
  remove_tree(replaced);
  rename_file(target, replaced);
  fault_point("save: replaced one renamed");
  try {
    rename_file(written, target);
  } catch (const FileError&) {
    std::error_code unknown;  // if this rename fails as well, restore_replaced() repeats it
    fs::rename(replaced, target, unknown);
    throw;
  }
}

std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& steps, const Retention& keep,
                                     int64_t best_step) {
  std::vector<int64_t> doomed;
  for (size_t i = static_cast<size_t>(keep.newest); i < steps.size(); ++i) {
    const bool kept =
        (keep.every > 0 && steps[i] % keep.every == 0) || (keep.best && steps[i] == best_step);
    if (!kept) doomed.push_back(steps[i]);
  }
  return doomed;
}

namespace {

/// Returns the value of "files" in a checkpoint's manifest.
Json files_of_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string where = path.string();
  const Json manifest =
      parse_json(read_file(path, Exit::checkpoint, max_checkpoint_json), where, Exit::checkpoint);
  const auto format = json_get<std::string>(manifest, "format", where, Exit::checkpoint);
  if (format != checkpoint_format && format != divided_checkpoint_format) {
    fail(Exit::checkpoint, where, ": the format is \"", printable_line(format),
         "\", but this build reads \"", checkpoint_format, "\" and \"", divided_checkpoint_format,
         "\"; use the version of lathe that wrote the checkpoint");
  }
  return json_get<Json>(manifest, "files", where, Exit::checkpoint);
}

/// Returns the number of processes among whose files the tensors are divided. Returns 0 if a single
/// file has all tensors.
int ranks_of(const Json& files) {
  constexpr int most = 99'999;
  const std::string first = tensor_file_name(CheckpointPart::model, 0, most);
  const std::string begin = first.substr(0, first.find("99999"));
  for (const auto& [name, entry] : files.items()) {
    int ranks = 0;
    if (!name.starts_with(begin)) continue;
    std::from_chars(name.data() + begin.size(), name.data() + name.size(), ranks);
    if (ranks > 1 && ranks <= most && name == tensor_file_name(CheckpointPart::model, 0, ranks))
      return ranks;
  }
  return 0;
}

std::vector<std::string> tensor_file_names(const Json& files, CheckpointPart which) {
  const int ranks = ranks_of(files);
  if (ranks == 0) return {tensor_file_name(which)};
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back(tensor_file_name(which, r, ranks));
  return names;
}

}  // namespace

std::string tensor_file_name(CheckpointPart which, int rank, int ranks) {
  const char* const stem = which == CheckpointPart::model ? "model" : "optimizer";
  return ranks == 0 ? str(stem, ".safetensors")
                    : format("%s-%05d-of-%05d.safetensors", stem, rank + 1, ranks);
}

std::vector<std::string> tensor_file_names(const fs::path& checkpoint, CheckpointPart which) {
  if (!fs::exists(checkpoint / "manifest.json")) return {tensor_file_name(which)};
  return tensor_file_names(files_of_manifest(checkpoint), which);
}

std::string model_id(const fs::path& checkpoint) {
  const std::string where = (checkpoint / "manifest.json").string();
  const Json files = files_of_manifest(checkpoint);
  std::string sums;
  const std::vector<std::string> names = tensor_file_names(files, CheckpointPart::model);
  for (const std::string& name : names) {
    const Json entry = json_get<Json>(files, name.c_str(), where, Exit::checkpoint);
    sums += json_get<std::string>(entry, "xxh3", where, Exit::checkpoint);
  }
  if (names.size() == 1) return sums;
  Checksum all;
  all.update(sums.data(), sums.size());
  return all.hex();
}

void verify_checkpoint(const fs::path& checkpoint) {
  const std::string where = (checkpoint / "manifest.json").string();
  const Json files = files_of_manifest(checkpoint);

  // The progress bar shows bytes, so add up the sizes of all files first.
  uint64_t all = 0, done = 0;
  for (const Json& entry : files) {
    if (entry.is_object() && entry.contains("bytes") && entry["bytes"].is_number_unsigned())
      all += entry["bytes"].get<uint64_t>();
  }
  ProgressBar bar("checking " + checkpoint.filename().string(), static_cast<double>(all));

  // Only replay bundles have batches.safetensors. Files that the manifest does not list are
  // ignored.
  std::vector<std::string> names = tensor_file_names(files, CheckpointPart::model);
  for (std::string& name : tensor_file_names(files, CheckpointPart::optimizer))
    names.push_back(std::move(name));
  names.emplace_back("state.json");
  if (files.contains("batches.safetensors")) names.emplace_back("batches.safetensors");
  for (const std::string& name : names) {
    const Json entry = json_get<Json>(files, name.c_str(), where, Exit::checkpoint);
    const fs::path file = checkpoint / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error) fail(Exit::checkpoint, file.string(), " is missing");

    // Check the size first, since it shows damage without reading the file.
    const int64_t wanted = json_integer(entry, "bytes", 0, std::numeric_limits<int64_t>::max(),
                                        where, Exit::checkpoint);
    if (bytes != static_cast<uint64_t>(wanted))
      fail(Exit::checkpoint, file.string(), " has ", bytes, " bytes instead of ", wanted);

    const std::string sum =
        file_checksum(file, [&](uint64_t n) { bar.show(static_cast<double>(done + n)); });
    if (sum != json_get<std::string>(entry, "xxh3", where, Exit::checkpoint))
      fail(Exit::checkpoint, file.string(), " is damaged: its checksum differs");
    done += bytes;
  }
}

std::string content_id(const fs::path& checkpoint) {
  return file_checksum(checkpoint / "manifest.json");
}

std::optional<fs::path> newest_checkpoint(const fs::path& run) {
  const auto all = list_checkpoints(run);
  if (all.empty()) return std::nullopt;

  std::string reasons;
  for (const auto& path : all) {
    try {
      verify_checkpoint(path);
      return path;
    } catch (const Error& e) {
      log_warn("checkpoint ", path.filename().string(), " can't be used: ", e.what());
      if (reasons.empty()) reasons = e.what();
    }
  }
  fail(Exit::checkpoint, "no checkpoint of ", run.string(), " can be used (", reasons,
       "); restore a checkpoint, or start a new run in another --train.out_dir");
}

fs::path find_checkpoint(const fs::path& path_, const std::string& which) {
  fs::path path = without_trailing_slash(path_);
  if (kind_of(path) == PathKind::gguf)
    fail(Exit::checkpoint, path.string(),
         " is a GGUF file; import the file with `lathe import`, and name the imported run");
  if (!fs::is_directory(path))
    fail(Exit::checkpoint, path.string(), " is neither a run nor a checkpoint folder");
  if (is_hugging_face(path))
    fail(Exit::checkpoint, path.string(),
         " is a Hugging Face folder; import the folder with `lathe import`");

  if (is_checkpoint(path)) {
    if (which != "newest") {
      fail(Exit::usage, path.string(), " is a checkpoint, not a run, so \"", which,
           "\" can't be chosen; name the checkpoint's run");
    }
    verify_checkpoint(path);
    return path;
  }

  // In the following, `path` is a run. Its newest checkpoint also records which checkpoint was the
  // best.
  const auto newest = newest_checkpoint(path);
  if (!newest && path.filename() == "checkpoints") {
    fail(Exit::checkpoint, path.string(),
         " is the folder of a run's checkpoints; name the run, or one checkpoint in this folder");
  }
  if (!newest) fail(Exit::checkpoint, path.string(), " holds no checkpoint");
  if (which == "newest") return *newest;

  if (which != "best") {
    const fs::path named = path / "checkpoints" / which;
    if (!fs::is_directory(named))
      fail(Exit::checkpoint, path.string(), " holds no checkpoint ", which);
    verify_checkpoint(named);
    return named;
  }

  const RunState state = read_state(*newest);
  if (state.best_step < 0)
    fail(Exit::usage, path.string(), " has no best checkpoint: the run was never evaluated");
  for (const auto& [step, one] : numbered_checkpoints(path)) {
    if (step != state.best_step) continue;
    verify_checkpoint(one);
    return one;
  }
  if (state.best_step == 0)
    fail(Exit::usage, path.string(),
         " was best before its first step, and no checkpoint is written then; train longer, or "
         "with a lower optim.lr");
  fail(Exit::usage, path.string(), " was best after step ", state.best_step,
       ", and that checkpoint was not kept; train with checkpoint.keep_best = true");
}

}  // namespace lathe
