#include "train/store/checkpoint.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "autograd/fp8.h"
#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/progress.h"
#include "core/io/safetensors.h"
#include "core/io/text.h"
#include "train/store/run_folder.h"

namespace lathe {
namespace {

constexpr const char* format_name = "lathe-checkpoint-1";
constexpr const char* temporary_prefix = ".unfinished-";
constexpr uint64_t max_json = uint64_t{64}
                              << 20;  // bytes of state.json and of manifest.json that are read

Json state_json(const RunState& s) {
  Json json{{"step", s.step},
            {"updates", s.updates},
            {"tokens", s.tokens},
            {"threads", s.threads},
            {"isa", s.isa},
            {"device", s.device_model},
            {"data_hash", s.data_hash},
            {"metrics_bytes", s.metrics_bytes},
            {"config", s.config}};
  for (const auto& [file, bytes] : s.sink_bytes) json["sink_bytes"][file] = bytes;
  if (s.eval_due) json["eval_due"] = true;
  if (!s.config_path.empty()) json["config_path"] = s.config_path;
  for (const ConfigChange& c : s.changes)
    json["changes"].push_back({{"step", c.step}, {"key", c.key}, {"was", c.was}, {"is", c.is}});
  if (!s.branched_from.empty()) json["branched_from"] = s.branched_from;
  if (!s.branched_id.empty()) json["branched_id"] = s.branched_id;
  if (s.val_loss) json["val_loss"] = json_number(*s.val_loss);
  if (s.best_val_loss) json["best_val_loss"] = json_number(*s.best_val_loss);
  if (s.val_step >= 0) json["val_step"] = s.val_step;
  if (s.best_step >= 0) json["best_step"] = s.best_step;
  if (s.task != "language") json["task"] = s.task;
  if (s.sizes.outputs > 0) json["sizes"] = {{"input", s.sizes.input}, {"outputs", s.sizes.outputs}};
  if (!s.base_hash.empty()) json["base_hash"] = s.base_hash;
  if (s.scaler) {
    json["scaler"] = {{"loss_scale", s.scaler->scale},
                      {"growth_tracker", s.scaler->growth_tracker},
                      {"skipped", s.scaler->skipped},
                      {"skipped_in_row", s.scaler->skipped_in_row}};
  }
  if (s.spikes) {
    json["spikes"] = {{"seen", s.spikes->seen},
                      {"mean", s.spikes->mean},
                      {"variance", s.spikes->variance},
                      {"skipped", s.spikes->skipped},
                      {"skipped_in_row", s.spikes->skipped_in_row}};
  }
  if (s.tokenizer) s.tokenizer->add_to_json(json["tokenizer"] = Json::object(), "kind");
  return json;
}

void copy_into(const SafetensorsFile& file, const std::string& name, const at::Tensor& to,
               const fs::path& path) {
  to.copy_(entry_tensor(file.at(name), to.sizes(), path));
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

std::string checkpoint_name(int64_t step) {
  return format("step-%08lld", static_cast<long long>(step));
}

int64_t step_of(const fs::path& checkpoint) {
  try {
    return read_state(checkpoint).step;
  } catch (const Error&) {
    const std::string name = checkpoint.filename().string();
    return std::atoll(name.c_str() + std::min(name.size(), std::string("step-").size()));
  }
}

namespace {

/// As list_checkpoints, with the step of each.
std::vector<std::pair<int64_t, fs::path>> numbered_checkpoints(const fs::path& run) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const auto& path : list_folder(run / "checkpoints")) {
    const std::string name = path.filename().string();
    const bool numbered = name.size() >= 13 && name.starts_with("step-") &&
                          name.find_first_not_of("0123456789", 5) == std::string::npos;
    if (numbered) found.emplace_back(step_of(path), path);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

void set_aside_unusable(const fs::path& checkpoint) {
  move_to_backup(checkpoint,
                 checkpoint.parent_path() / ("unusable-" + checkpoint.filename().string()));
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> paths;
  for (auto& [step, path] : numbered_checkpoints(run)) paths.push_back(std::move(path));
  return paths;
}

void quarantine_newer(const fs::path& checkpoint) {
  const int64_t own = step_of(checkpoint);
  for (const auto& [step, other] : numbered_checkpoints(checkpoint.parent_path().parent_path())) {
    if (step > own) set_aside_unusable(other);
  }
}

void clean_checkpoints(const fs::path& run) {
  for (const auto& path : list_folder(run / "checkpoints")) {
    if (!path.filename().string().starts_with(temporary_prefix)) continue;
    try {
      remove_tree(path);
    } catch (const FileError& e) {
      log_warn(path.filename().string(), " is left: ", e.cause(),
               "; it is no longer needed, and can be removed by hand");
    }
  }
}

namespace {

bool is_whole(const fs::path& checkpoint) {
  try {
    verify_checkpoint(checkpoint);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// For a step that is saved again: a whole checkpoint is replaced (clean_checkpoints deletes it),
/// another is set aside.
void vacate_target(const fs::path& target) {
  if (!is_whole(target)) return set_aside_unusable(target);
  const fs::path replaced =
      target.parent_path() / (temporary_prefix + ("replaced-" + target.filename().string()));
  remove_tree(replaced);
  rename_file(target, replaced);
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
                     json_text(Json{{"format", format_name}, {"files", files}}, 1) + "\n");
  fault_point("save: manifest written");
  sync_folder(temporary);
  fault_point("save: folder synced");
  if (fs::exists(target)) vacate_target(target);
  rename_file(temporary, target);
  fault_point("save: renamed");
  sync_folder(target.parent_path());
  fault_point("save: parent synced");
}

}  // namespace

void write_checkpoint(const fs::path& target, const RunState& state, const Snapshot& snapshot,
                      const std::vector<TensorEntry>& batches) {
  const std::string name = target.filename().string();
  const fs::path temporary = target.parent_path() / (temporary_prefix + name);
  try {
    write_files(temporary, target, state, snapshot, batches);
  } catch (const FileError& e) {
    try {
      remove_tree(temporary);
    } catch (
        const FileError&) {  // the next start removes it; what went wrong first is what to tell
    }
    std::error_code unknown;
    const auto space = fs::space(target.parent_path().parent_path(), unknown);
    std::string room;
    if (e.is_full()) room = str("; it takes a little over ", snapshot.bytes(), " bytes");
    // More may be free: a quota can be used up, and a file system's blocks and its own records take
    // space too.
    const bool is_short = !unknown && space.available <= static_cast<uintmax_t>(snapshot.bytes());
    if (e.is_full() && is_short) room += str(", and ", space.available, " are free");
    throw FileError(e.code(), str("checkpoint ", name, " is not saved: ", e.cause(), room),
                    e.number());
  }
}

fs::path save_checkpoint(const fs::path& run, const RunState& state,
                         const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         const Retention& keep, std::optional<at::ScalarType> dtype) {
  check_finite(parameters, state.step);
  return store_checkpoint(run, state, view_state(parameters, optimizer, dtype), keep);
}

fs::path store_checkpoint(const fs::path& run, const RunState& state, const Snapshot& snapshot,
                          const Retention& keep) {
  const fs::path parent = run / "checkpoints", target = parent / checkpoint_name(state.step);
  write_checkpoint(target, state, snapshot);

  // Old ones lose their names, durably, before they lose their files: what is named step-N is whole
  // at any moment.
  const auto all = numbered_checkpoints(run);
  std::vector<int64_t> steps;
  for (const auto& [step, path] : all) steps.push_back(step);
  const auto doomed = steps_to_delete(steps, keep, state.best_step);
  try {
    for (const auto& [step, path] : all) {
      if (std::find(doomed.begin(), doomed.end(), step) == doomed.end()) continue;
      rename_file(path, parent / (temporary_prefix + path.filename().string()));
      fault_point("save: deleting an old one");
    }
    if (!doomed.empty()) sync_folder(parent);
    clean_checkpoints(run);
  } catch (const FileError& e) {  // what is new is safe; the next save tries again
    log_warn("old checkpoints are not deleted: ", e.cause());
  }
  return target;
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

std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config) {
  return config.dtype == "auto" ? std::nullopt : std::optional(dtype_from_config(config.dtype));
}

void verify_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string where = path.string();
  const Json manifest =
      parse_json(read_file(path, Exit::checkpoint, max_json), where, Exit::checkpoint);
  if (json_get<std::string>(manifest, "format", where, Exit::checkpoint) != format_name) {
    fail(Exit::checkpoint, where, ": a format that this build does not know");
  }
  const Json files = json_get<Json>(manifest, "files", where, Exit::checkpoint);
  uint64_t all = 0, done = 0;
  for (const Json& entry : files) {
    if (entry.is_object() && entry.contains("bytes") && entry["bytes"].is_number_unsigned())
      all += entry["bytes"].get<uint64_t>();
  }
  ProgressBar bar("checking " + checkpoint.filename().string(), static_cast<double>(all));
  std::vector<const char*> names{"model.safetensors", "optimizer.safetensors", "state.json"};
  if (files.contains("batches.safetensors")) names.push_back("batches.safetensors");
  for (const char* name : names) {
    const Json entry = json_get<Json>(files, name, where, Exit::checkpoint);
    const fs::path file = checkpoint / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error) fail(Exit::checkpoint, file.string(), " is missing");
    const int64_t wanted =
        json_whole(entry, "bytes", 0, std::numeric_limits<int64_t>::max(), where, Exit::checkpoint);
    if (bytes != static_cast<uint64_t>(wanted))
      fail(Exit::checkpoint, file.string(), " has ", bytes, " bytes instead of ", wanted);
    const std::string sum =
        file_checksum(file, [&](uint64_t n) { bar.show(static_cast<double>(done + n)); });
    if (sum != json_get<std::string>(entry, "xxh3", where, Exit::checkpoint))
      fail(Exit::checkpoint, file.string(), " is not what was written: its checksum differs");
    done += bytes;
  }
}

RunState read_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  const std::string where = path.string();
  const Json j = parse_json(read_file(path, Exit::checkpoint, max_json), where, Exit::checkpoint);
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const auto number = [&](const char* key, int64_t max, int64_t min = 0) {
    return json_whole(j, key, min, max, where, Exit::checkpoint);
  };
  const auto text = [&](const char* key) {
    return json_get<std::string>(j, key, where, Exit::checkpoint);
  };
  RunState s;
  s.step = number("step", 1'000'000'000'000'000);
  s.updates = number("updates", s.step);
  s.tokens = number("tokens", most / 2);
  s.threads = number("threads", 4096, 1);
  s.isa = text("isa");
  s.device_model = text("device");
  s.data_hash = text("data_hash");
  s.metrics_bytes = static_cast<uint64_t>(number("metrics_bytes", most));
  if (j.contains("sink_bytes")) {
    const Json& files = j["sink_bytes"];
    if (!files.is_object()) fail(Exit::checkpoint, where, ": \"sink_bytes\" is no object");
    for (const auto& [file, bytes] : files.items())
      s.sink_bytes[file] =
          static_cast<uint64_t>(json_whole(files, file.c_str(), 0, most, where, Exit::checkpoint));
  }
  s.config = text("config");
  s.eval_due = j.contains("eval_due") && json_get<bool>(j, "eval_due", where, Exit::checkpoint);
  if (j.contains("branched_from")) s.branched_from = text("branched_from");
  if (j.contains("branched_id")) s.branched_id = text("branched_id");
  if (j.contains("config_path")) s.config_path = text("config_path");
  if (j.contains("changes")) {
    for (const Json& c : j["changes"]) {
      const auto of = [&](const char* key) {
        return json_get<std::string>(c, key, where, Exit::checkpoint);
      };
      s.changes.push_back({json_whole(c, "step", 0, s.step, where, Exit::checkpoint), of("key"),
                           of("was"), of("is")});
    }
  }
  if (j.contains("val_step"))
    s.val_step = json_whole(j, "val_step", -1, s.step, where, Exit::checkpoint);
  if (j.contains("best_step"))
    s.best_step = json_whole(j, "best_step", -1, s.step, where, Exit::checkpoint);
  if (j.contains("val_loss") || j.contains("best_val_loss")) {  // both or neither
    s.val_loss = json_real(j, "val_loss", where, Exit::checkpoint);
    s.best_val_loss = json_real(j, "best_val_loss", where, Exit::checkpoint);
  }
  if (j.contains("task")) s.task = text("task");
  if (j.contains("sizes")) {
    const Json& sizes = j["sizes"];
    constexpr int64_t largest = int64_t{1} << 40;
    s.sizes.input = json_get<std::vector<int64_t>>(sizes, "input", where, Exit::checkpoint);
    s.sizes.outputs = json_whole(sizes, "outputs", 1, largest, where, Exit::checkpoint);
    int64_t product = 1;
    for (const int64_t size : s.sizes.input) {
      if (size < 1 || size > largest / product)
        fail(Exit::checkpoint, where, ": \"input\" has a size of ", size);
      product *= size;
    }
  }
  if (j.contains("base_hash")) s.base_hash = text("base_hash");
  if (j.contains("scaler")) {
    const Json& scaler = j["scaler"];
    const auto count = [&](const char* key, int64_t max) {
      return json_whole(scaler, key, 0, max, where, Exit::checkpoint);
    };
    ScaleState scale;
    scale.scale = static_cast<float>(json_real(scaler, "loss_scale", where, Exit::checkpoint));
    scale.growth_tracker =
        static_cast<int32_t>(count("growth_tracker", std::numeric_limits<int32_t>::max()));
    scale.skipped = count("skipped", s.step);
    scale.skipped_in_row = count("skipped_in_row", scale.skipped);
    if (!(scale.scale > 0) || !std::isfinite(scale.scale)) {
      fail(Exit::checkpoint, where, ": \"loss_scale\" is ", scale.scale,
           "; it must be above 0 and within float32's range");
    }
    s.scaler = scale;
  }
  if (j.contains("spikes")) {
    const Json& spikes = j["spikes"];
    const auto count = [&](const char* key) {
      return json_whole(spikes, key, 0, s.step, where, Exit::checkpoint);
    };
    const auto real = [&](const char* key) {
      return json_real(spikes, key, where, Exit::checkpoint);
    };
    s.spikes = SpikeState{count("seen"), real("mean"), real("variance"), count("skipped"),
                          count("skipped_in_row")};
  }
  if (j.contains("tokenizer")) {
    try {
      s.tokenizer = Tokenizer::from_json(j["tokenizer"], "kind", where);
    } catch (const Error& e) {
      fail(Exit::checkpoint, e.what());
    }
  }
  return s;
}

void check_tokenizer(const fs::path& data, const DatasetInfo& facts, const RunState& state) {
  if (facts.tokenizer && state.tokenizer && *facts.tokenizer != *state.tokenizer) {
    fail(Exit::data, data.string(),
         " was made with another tokenizer or vocabulary than the run's data; its loss would mean "
         "nothing");
  }
}

RunConfig saved_config(const RunState& state, const fs::path& checkpoint) {
  const std::string where = (checkpoint / "state.json").string();
  RunConfig config = config_from_toml(state.config, where);

  const int64_t vocab_size = batch_sizes(config).vocab_size;
  if (state.tokenizer && vocab_size > 0 && state.tokenizer->size() > vocab_size) {
    fail(Exit::checkpoint, where, ": the tokenizer has ", state.tokenizer->size(),
         " tokens, and the model a vocabulary of ", vocab_size);
  }
  return config;
}

std::string content_id(const fs::path& checkpoint) {
  return file_checksum(checkpoint / "manifest.json");
}

void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const fs::path path = checkpoint / "model.safetensors";
  const SafetensorsFile file(path);
  if (file.tensors().size() != parameters.size()) {
    fail(Exit::checkpoint, path.string(), " has ", file.tensors().size(), " tensors, the model ",
         parameters.size());
  }
  for (const auto& p : parameters) copy_into(file, p.path, p.parameter.data(), path);
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
  each_state(optimizer,
             [&](const std::string& name, const at::Tensor& t) { copy_into(file, name, t, path); });
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      if (file.find(slot.path + ".master") != nullptr)
        copy_into(file, slot.path + ".master", slot.param.data(), path);
    }
  }
}

void load_averages(const fs::path& checkpoint, const std::vector<NamedParameter>& trained) {
  const fs::path path = checkpoint / "optimizer.safetensors";
  const SafetensorsFile file(path);
  for (const auto& p : trained)
    copy_into(file, str(p.path, ".", average_name), p.parameter.data(), path);
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
       "); restore one, or start a new run in another --train.out_dir");
}

fs::path find_checkpoint(const fs::path& path_, const std::string& which) {
  fs::path path = without_trailing_slash(path_);
  if (!fs::is_directory(path))
    fail(Exit::checkpoint, path.string(), " is no run and no checkpoint folder");
  if (is_hugging_face(path))
    fail(Exit::checkpoint, path.string(),
         " is a Hugging Face folder; make a run of it with `lathe import`");
  if (is_checkpoint(path)) {
    if (which != "newest") {
      fail(Exit::usage, path.string(), " is a checkpoint itself, so there is no choosing \"", which,
           "\" among several; name its run");
    }
    verify_checkpoint(path);
    return path;
  }
  const auto newest = newest_checkpoint(path);
  if (!newest) fail(Exit::checkpoint, path.string(), " holds no checkpoint");
  if (which == "newest") return *newest;
  if (which != "best") {
    const fs::path named = path / "checkpoints" / which;
    if (!fs::is_directory(named)) fail(Exit::usage, path.string(), " holds no checkpoint ", which);
    verify_checkpoint(named);
    return named;
  }
  const RunState state = read_state(*newest);
  if (state.best_step < 0)
    fail(Exit::usage, path.string(), " has no best checkpoint: it was never evaluated");
  for (const auto& [step, one] : numbered_checkpoints(path)) {
    if (step != state.best_step) continue;
    verify_checkpoint(one);
    return one;
  }
  fail(Exit::usage, path.string(), " was best after step ", state.best_step,
       ", and that checkpoint was not kept; train with checkpoint.keep_best = true");
}

}  // namespace lathe
