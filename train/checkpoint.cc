#include "train/checkpoint.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "autograd/fp8.h"
#include "core/dtype.h"
#include "core/io/checksum.h"
#include "core/io/log.h"
#include "core/io/safetensors.h"

namespace lathe {
namespace {

constexpr const char* format = "lathe-checkpoint-1";
constexpr const char* temporary_prefix = ".unfinished-";

std::string step_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

Json state_json(const RunState& s) {
  Json json{
      {"step", s.step},    {"updates", s.updates},     {"tokens", s.tokens},       {"threads", s.threads},
      {"isa", s.isa},      {"device", s.device_model}, {"data_hash", s.data_hash}, {"metrics_bytes", s.metrics_bytes},
      {"config", s.config}};
  if (s.eval_due) json["eval_due"] = true;
  if (!s.branched_from.empty()) json["branched_from"] = s.branched_from;
  if (s.val_loss) json["val_loss"] = json_number(*s.val_loss);
  if (s.best_val_loss) json["best_val_loss"] = json_number(*s.best_val_loss);
  if (!s.base_hash.empty()) json["base_hash"] = s.base_hash;
  if (s.scaler) {
    json["scaler"] = {{"loss_scale", s.scaler->scale},
                      {"growth_tracker", s.scaler->growth_tracker},
                      {"skipped", s.scaler->skipped},
                      {"skipped_in_row", s.scaler->skipped_in_row}};
  }
  if (s.tokenizer) json["tokenizer"] = {{"kind", s.tokenizer->kind()}, {"vocabulary", s.tokenizer->vocabulary()}};
  return json;
}

/// By step, newest first; a longer number is a later step.
bool newer(const fs::path& a, const fs::path& b) {
  const std::string x = a.filename().string(), y = b.filename().string();
  return x.size() != y.size() ? x.size() > y.size() : x > y;
}

bool is_saved_lower(const at::Tensor& t, std::optional<at::ScalarType> dtype) {
  return dtype && t.scalar_type() != *dtype && t.dim() >= 2;
}

/// Host copies of tensors on their way to a file; keeps them alive.
struct Snapshot {
  std::vector<TensorEntry> entries;
  std::vector<at::Tensor> held;

  void add(const std::string& name, const at::Tensor& t) {
    const at::Tensor host = t.to(at::kCPU).contiguous();
    entries.push_back({name,
                       safetensors_dtype(host.scalar_type()),
                       host.sizes().vec(),
                       {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}});
    held.push_back(host);
  }
};

template <class F>
void each_state(const Optimizer& optimizer, F&& f) {
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      for (size_t i = 0; i < slot.state.size(); ++i) f(slot.path + "." + optimizer.state_names()[i], slot.state[i]);
      if (const auto& fp8 = slot.param.leaf().precision.fp8; fp8 && fp8->history.defined())
        f(slot.path + ".fp8_history", fp8->history);
    }
  }
}

void copy_into(const SafetensorsFile& file, const std::string& name, const at::Tensor& to, const fs::path& path) {
  to.copy_(entry_tensor(file.at(name), to.sizes(), path));
}

}  // namespace

at::Tensor entry_tensor(const TensorEntry& entry, at::IntArrayRef sizes, const fs::path& path) {
  const auto dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype || at::IntArrayRef(entry.shape) != sizes) {
    fail(Exit::checkpoint, path.string(), ": tensor \"", entry.name, "\" is ", entry.dtype,
         describe(at::IntArrayRef(entry.shape)), ", the model needs ", describe(sizes));
  }
  return at::from_blob(const_cast<std::byte*>(entry.bytes.data()), entry.shape, at::TensorOptions().dtype(*dtype));
}

std::vector<fs::path> list_checkpoints(const fs::path& run) {
  std::vector<fs::path> found;
  for (const auto& path : list_folder(run / "checkpoints")) {
    const std::string name = path.filename().string();
    const bool numbered =
        name.size() >= 13 && name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == std::string::npos;
    if (numbered) found.push_back(path);
  }
  std::sort(found.begin(), found.end(), newer);
  return found;
}

void set_aside_newer(const fs::path& checkpoint) {
  for (const auto& other : list_checkpoints(checkpoint.parent_path().parent_path())) {
    if (!newer(other, checkpoint)) continue;
    const fs::path aside = other.parent_path() / ("unusable-" + other.filename().string());
    remove_tree(aside);
    rename_file(other, aside);
    log_info("set aside as ", aside.string());
  }
}

void clean_checkpoints(const fs::path& run) {
  for (const auto& path : list_folder(run / "checkpoints")) {
    if (path.filename().string().starts_with(temporary_prefix)) remove_tree(path);
  }
}

namespace {

/// Writes the files of a checkpoint into `temporary`, syncs all, and gives it the name `target`.
void write_checkpoint(const fs::path& temporary, const fs::path& target, const RunState& state,
                      const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                      std::optional<at::ScalarType> dtype) {
  fault_point("save: begun");
  make_folders(target.parent_path());
  remove_tree(temporary);
  make_folders(temporary);
  fault_point("save: folder made");

  Json files = Json::object();
  const auto note = [&](const char* name, const std::string& sum) {
    files[name] = {{"bytes", fs::file_size(temporary / name)}, {"xxh3", sum}};
  };
  Snapshot model;
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    model.add(p.path, is_saved_lower(t, dtype) ? t.to(*dtype) : t);
  }
  note("model.safetensors", write_safetensors(temporary / "model.safetensors", model.entries));
  fault_point("save: model written");
  Snapshot moments;
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t) { moments.add(name, t); });
  for (const auto& p : parameters) {
    if (is_saved_lower(p.parameter.data(), dtype)) moments.add(p.path + ".master", p.parameter.data());
  }
  note("optimizer.safetensors", write_safetensors(temporary / "optimizer.safetensors", moments.entries));
  fault_point("save: optimizer written");
  write_file_durably(temporary / "state.json", state_json(state).dump(1) + "\n");
  note("state.json", file_checksum(temporary / "state.json"));
  fault_point("save: state written");
  write_file_durably(temporary / "manifest.json", Json{{"format", format}, {"files", files}}.dump(1) + "\n");
  fault_point("save: manifest written");
  sync_folder(temporary);
  fault_point("save: folder synced");
  rename_file(temporary, target);
  fault_point("save: renamed");
  sync_folder(target.parent_path());
  fault_point("save: parent synced");
}

}  // namespace

fs::path save_checkpoint(const fs::path& run, const RunState& state, const std::vector<NamedParameter>& parameters,
                         const Optimizer& optimizer, int64_t keep, std::optional<at::ScalarType> dtype) {
  const fs::path parent = run / "checkpoints", target = parent / step_name(state.step),
                 temporary = parent / (temporary_prefix + step_name(state.step));
  try {
    write_checkpoint(temporary, target, state, parameters, optimizer, dtype);
  } catch (const FileError& e) {
    try {
      remove_tree(temporary);
    } catch (const FileError&) {  // the next start removes it; what went wrong first is what to tell
    }
    std::error_code unknown;
    const auto space = fs::space(run, unknown);
    const std::string room = e.is_full() && !unknown
                                 ? str("; it takes a little over ", checkpoint_bytes(parameters, optimizer, dtype),
                                       " bytes, and ", space.available, " are free")
                                 : "";
    throw FileError(e.code(), str("checkpoint ", step_name(state.step), " is not saved: ", e.cause(), room),
                    e.number());
  }

  // Old ones lose their names, durably, before they lose their files: what is named step-N is whole at any moment.
  const auto all = list_checkpoints(run);
  for (size_t i = static_cast<size_t>(keep); i < all.size(); ++i) {
    rename_file(all[i], parent / (temporary_prefix + all[i].filename().string()));
    fault_point("save: deleting an old one");
  }
  if (all.size() > static_cast<size_t>(keep)) sync_folder(parent);
  clean_checkpoints(run);
  return target;
}

std::optional<at::ScalarType> save_dtype(const CheckpointConfig& config) {
  return config.dtype == "auto" ? std::nullopt : std::optional(dtype_from_config(config.dtype));
}

int64_t checkpoint_bytes(const std::vector<NamedParameter>& parameters, const Optimizer& optimizer,
                         std::optional<at::ScalarType> dtype) {
  int64_t bytes = 0;
  each_state(optimizer, [&](const std::string&, const at::Tensor& t) { bytes += static_cast<int64_t>(t.nbytes()); });
  for (const auto& p : parameters) {
    const at::Tensor& t = p.parameter.data();
    bytes += static_cast<int64_t>(t.nbytes());  // as it is, in one file or the other
    if (is_saved_lower(t, dtype)) bytes += t.numel() * static_cast<int64_t>(c10::elementSize(*dtype));
  }
  return bytes;
}

void verify_checkpoint(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "manifest.json";
  const std::string where = path.string();
  const Json manifest = parse_json(read_file(path, Exit::checkpoint), where, Exit::checkpoint);
  if (json_get<std::string>(manifest, "format", where, Exit::checkpoint) != format) {
    fail(Exit::checkpoint, where, ": a format that this build does not know");
  }
  const Json files = json_get<Json>(manifest, "files", where, Exit::checkpoint);
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const Json entry = json_get<Json>(files, name, where, Exit::checkpoint);
    const fs::path file = checkpoint / name;
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    if (error) fail(Exit::checkpoint, file.string(), " is missing");
    if (bytes != json_get<uint64_t>(entry, "bytes", where, Exit::checkpoint)) {
      fail(Exit::checkpoint, file.string(), " has ", bytes, " bytes instead of ", entry["bytes"].get<uint64_t>());
    }
    if (file_checksum(file) != json_get<std::string>(entry, "xxh3", where, Exit::checkpoint)) {
      fail(Exit::checkpoint, file.string(), " is not what was written: its checksum differs");
    }
  }
}

RunState read_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  const std::string where = path.string();
  const Json j = parse_json(read_file(path, Exit::checkpoint), where, Exit::checkpoint);
  const auto number = [&](const char* key) { return json_get<int64_t>(j, key, where, Exit::checkpoint); };
  const auto text = [&](const char* key) { return json_get<std::string>(j, key, where, Exit::checkpoint); };
  RunState s;
  s.step = number("step");
  s.updates = number("updates");
  s.tokens = number("tokens");
  s.threads = number("threads");
  s.isa = text("isa");
  s.device_model = text("device");
  s.data_hash = text("data_hash");
  s.metrics_bytes = json_get<uint64_t>(j, "metrics_bytes", where, Exit::checkpoint);
  s.config = text("config");
  s.eval_due = j.contains("eval_due");
  if (j.contains("branched_from")) s.branched_from = text("branched_from");
  if (j.contains("val_loss") && j["val_loss"].is_number()) s.val_loss = j["val_loss"].get<double>();
  if (j.contains("best_val_loss") && j["best_val_loss"].is_number()) s.best_val_loss = j["best_val_loss"].get<double>();
  if (j.contains("base_hash")) s.base_hash = text("base_hash");
  if (j.contains("scaler")) {
    const Json& scaler = j["scaler"];
    const auto of = [&](const char* key) { return json_get<int64_t>(scaler, key, where, Exit::checkpoint); };
    s.scaler = ScaleState{.scale = static_cast<float>(json_get<double>(scaler, "loss_scale", where, Exit::checkpoint)),
                          .growth_tracker = static_cast<int32_t>(of("growth_tracker")),
                          .skipped = of("skipped"),
                          .skipped_in_row = of("skipped_in_row")};
    if (!(s.scaler->scale > 0) || !std::isfinite(s.scaler->scale))
      fail(Exit::checkpoint, where, ": a loss scale of ", s.scaler->scale);
  }
  if (j.contains("tokenizer")) {
    s.tokenizer =
        Tokenizer::from(json_get<std::string>(j["tokenizer"], "kind", where, Exit::checkpoint),
                        json_get<std::vector<std::string>>(j["tokenizer"], "vocabulary", where, Exit::checkpoint));
  }
  return s;
}

void load_parameters(const fs::path& checkpoint, const std::vector<NamedParameter>& parameters) {
  const fs::path path = checkpoint / "model.safetensors";
  const SafetensorsFile file(path);
  if (file.tensors().size() != parameters.size()) {
    fail(Exit::checkpoint, path.string(), " has ", file.tensors().size(), " tensors, the model ", parameters.size());
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
  each_state(optimizer, [&](const std::string& name, const at::Tensor& t) { copy_into(file, name, t, path); });
  for (const auto& group : optimizer.groups()) {
    for (const auto& slot : group.slots) {
      if (file.find(slot.path + ".master") != nullptr) copy_into(file, slot.path + ".master", slot.param.data(), path);
    }
  }
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
       "); restore one, or start anew in another --train.out_dir");
}

fs::path find_checkpoint(const fs::path& path_) {
  const fs::path path = without_trailing_slash(path_);
  if (!fs::is_directory(path)) fail(Exit::checkpoint, path.string(), " is no run and no checkpoint folder");
  if (fs::exists(path / "manifest.json") || path.filename().string().starts_with("step-")) {
    verify_checkpoint(path);
    return path;
  }
  const auto newest = newest_checkpoint(path);
  if (!newest) fail(Exit::checkpoint, path.string(), " holds no checkpoint");
  return *newest;
}

}  // namespace lathe
