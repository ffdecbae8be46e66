#include "train/store/run_state.h"

#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "core/io/text.h"
#include "train/store/checkpoint_folder.h"

namespace lathe {
namespace {

constexpr int64_t max_count = std::numeric_limits<int64_t>::max();

/// Holds the allowed range of an integer field.
struct Bounds {
  int64_t min = 0, max = max_count;
};

/// Visits the fields of state.json in their order, with a StateWriter or a StateReader. The bounds
/// of a field may depend on a field that was visited before. Optional fields with their default
/// value are not written.
template <class Visitor, class State>
void visit_fields(Visitor& v, State& s) {
  v.field("step", s.step, {.max = 1'000'000'000'000'000});
  v.field("updates", s.updates, {.max = s.step});
  v.field("tokens", s.tokens, {.max = max_count / 2});
  v.field("threads", s.threads, {.min = 1, .max = 4096});
  v.optional("processes", s.processes, int64_t{1}, {.min = 1});
  v.field("isa", s.isa);
  v.field("device", s.device_model);
  v.field("data_hash", s.data_hash);
  v.field("metrics_bytes", s.metrics_bytes);
  v.field("config", s.config);
  v.optional("sink_bytes", s.sink_bytes);
  v.optional("eval_due", s.eval_due);
  v.optional("sample_due", s.sample_due);
  v.optional("config_path", s.config_path);

  v.list("changes", s.changes, [&](auto& each, auto& change) {
    each.field("step", change.step, {.max = s.step});
    each.field("key", change.key);
    each.field("was", change.was);
    each.field("is", change.is);
  });

  v.optional("branched_from", s.branched_from);
  v.optional("branched_id", s.branched_id);
  v.group("imported", !s.imported_from.empty(), [&](auto& part) {
    part.field("folder", s.imported_from);
    part.field("ignored_keys", s.ignored_keys);
  });

  v.optional("val_loss", s.val_loss);
  v.optional("best_val_loss", s.best_val_loss);
  v.optional("val_step", s.val_step, int64_t{-1}, {.min = -1, .max = s.step});
  v.optional("best_step", s.best_step, int64_t{-1}, {.min = -1, .max = s.step});
  v.optional("evaluations_since_best", s.evaluations_since_best, int64_t{0}, {.min = 0});

  v.optional("task", s.task, std::string("language"));
  v.group("sizes", s.sizes.outputs > 0, [&](auto& part) {
    part.field("input", s.sizes.input);
    part.field("outputs", s.sizes.outputs, {.min = 1, .max = int64_t{1} << 40});
  });
  v.optional("examples", s.encoding);
  v.optional("base_hash", s.base_hash);
  v.optional("frozen_hash", s.frozen_hash);

  v.optional_parts("scaler", s.scaler, [&](auto& part, auto& scaler) {
    part.field("loss_scale", scaler.scale);
    part.field("growth_tracker", scaler.growth_tracker,
               {.max = std::numeric_limits<int32_t>::max()});
    // The state that is saved for `lathe replay` also counts the skipped update of the failed step.
    part.field("skipped", scaler.skipped, {.max = s.step + 1});
    part.field("skipped_in_row", scaler.skipped_in_row, {.max = scaler.skipped});
  });

  v.optional_parts("spikes", s.spikes, [&](auto& part, auto& spikes) {
    part.field("seen", spikes.seen, {.max = s.step});
    part.field("mean", spikes.mean);
    part.field("variance", spikes.variance);
    part.field("skipped", spikes.skipped, {.max = s.step});
    part.field("skipped_in_row", spikes.skipped_in_row, {.max = s.step});
  });

  v.optional("tokenizer", s.tokenizer);
}

class StateWriter {
 public:
  explicit StateWriter(Json& json) : json_(json) {}

  template <class T>
  void field(const char* key, const T& value, Bounds = {}) {
    Json& json = json_[key];
    if constexpr (std::same_as<T, double>) {
      json = json_number(value);
    } else if constexpr (std::same_as<T, ExampleEncoding>) {
      add_encoding(json = Json::object(), value);
    } else if constexpr (std::same_as<T, Tokenizer>) {
      value.add_to_json(json = Json::object(), "kind");
    } else {
      json = value;
    }
  }
  template <class T>
  void optional(const char* key, const T& value, const T& otherwise = {}, Bounds = {}) {
    if (value != otherwise) field(key, value);
  }
  template <class T>
  void optional(const char* key, const std::optional<T>& value) {
    if (value) field(key, *value);
  }
  template <class Visit>
  void group(const char* key, bool is_there, Visit&& visit) {
    if (!is_there) return;
    StateWriter part(json_[key]);
    visit(part);
  }
  template <class T, class Visit>
  void optional_parts(const char* key, const std::optional<T>& value, Visit&& visit) {
    group(key, value.has_value(), [&](StateWriter& part) { visit(part, *value); });
  }
  template <class T, class Visit>
  void list(const char* key, const std::vector<T>& values, Visit&& visit) {
    for (const T& value : values) {
      StateWriter each(json_[key].emplace_back());
      visit(each, value);
    }
  }

 private:
  Json& json_;
};

class StateReader {
 public:
  StateReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <class T>
  void field(const char* key, T& value, Bounds bounds = {}) {
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      value = static_cast<T>(
          json_integer(json_, key, bounds.min, bounds.max, where_, Exit::checkpoint));
    } else if constexpr (std::floating_point<T>) {
      value = static_cast<T>(json_real(json_, key, where_, Exit::checkpoint));
    } else {
      value = json_get<T>(json_, key, where_, Exit::checkpoint);
    }
  }
  void field(const char* key, std::map<std::string, uint64_t>& lengths, Bounds = {}) {
    const Json& files = json_[key];
    if (!files.is_object()) fail(Exit::checkpoint, where_, ": \"", key, "\" is not an object");
    StateReader each(files, where_);
    for (const auto& [file, bytes] : files.items()) each.field(file.c_str(), lengths[file]);
  }
  void field(const char* key, ExampleEncoding& encoding, Bounds = {}) {
    const auto json = json_get<Json>(json_, key, where_, Exit::checkpoint);
    // The task may be user-defined, so its name does not show whether targets are classes. Only
    // targets that are numbers have statistics.
    encoding =
        read_encoding(json, !json.contains("targets"), where_ + ": examples", Exit::checkpoint);
  }

  template <class T>
  void optional(const char* key, T& value, const T& = {}, Bounds bounds = {}) {
    if (json_.contains(key)) field(key, value, bounds);
  }
  template <class T>
  void optional(const char* key, std::optional<T>& value) {
    if (json_.contains(key)) field(key, value.emplace());
  }
  void optional(const char* key, std::optional<Tokenizer>& tokenizer) {
    if (!json_.contains(key)) return;
    try {
      tokenizer = Tokenizer::from_json(json_[key], "kind", where_);
    } catch (const Error& e) {
      fail(Exit::checkpoint, e.what());
    }
  }
  template <class Visit>
  void group(const char* key, bool, Visit&& visit) {
    if (!json_.contains(key)) return;
    StateReader part(json_[key], where_);
    visit(part);
  }
  template <class T, class Visit>
  void optional_parts(const char* key, std::optional<T>& value, Visit&& visit) {
    group(key, false, [&](StateReader& part) { visit(part, value.emplace()); });
  }
  template <class T, class Visit>
  void list(const char* key, std::vector<T>& values, Visit&& visit) {
    if (!json_.contains(key)) return;
    for (const Json& json : json_[key]) {
      StateReader each(json, where_);
      visit(each, values.emplace_back());
    }
  }

 private:
  const Json& json_;
  std::string where_;
};

/// Throws Exit::checkpoint if fields are not consistent with each other, or have impossible values.
void check_state(const RunState& s, const std::string& where) {
  if (s.val_loss.has_value() != s.best_val_loss.has_value())
    fail(Exit::checkpoint, where,
         ": \"val_loss\" and \"best_val_loss\" must both be present or both be missing");

  constexpr int64_t largest = int64_t{1} << 40;
  int64_t product = 1;
  for (const int64_t size : s.sizes.input) {
    if (size < 1 || size > largest / product)
      fail(Exit::checkpoint, where, ": \"input\" has a size of ", size);
    product *= size;
  }

  if (s.scaler && (!(s.scaler->scale > 0) || !std::isfinite(s.scaler->scale))) {
    fail(Exit::checkpoint, where, ": \"loss_scale\" is ", s.scaler->scale,
         "; it must be above 0 and within float32's range");
  }
}

}  // namespace

bool has_stalled(const TrainProgress& progress, int64_t evaluations) {
  return evaluations > 0 && progress.evaluations_since_best >= evaluations;
}

Json state_json(const RunState& state) {
  Json json;
  StateWriter writer(json);
  visit_fields(writer, state);
  return json;
}

RunState read_state(const fs::path& checkpoint) {
  const std::string where = (checkpoint / "state.json").string();
  const Json json =
      parse_json(read_file(where, Exit::checkpoint, max_checkpoint_json), where, Exit::checkpoint);

  RunState state;
  StateReader reader(json, where);
  visit_fields(reader, state);
  check_state(state, where);
  return state;
}

std::optional<ExampleEncoding> kept_encoding(const DatasetInfo& info) {
  constexpr size_t max_features = 65536;
  const bool is_small = info.encoding && info.encoding->inputs.mean.size() <= max_features &&
                        info.encoding->targets.mean.size() <= max_features;
  return is_small ? info.encoding : std::nullopt;
}

void check_tokenizer(const fs::path& data, const DatasetInfo& info, const RunState& state) {
  if (info.tokenizer && state.tokenizer && *info.tokenizer != *state.tokenizer) {
    fail(Exit::data, data.string(),
         " was made with a different tokenizer or vocabulary than the run's data, so its loss "
         "would be meaningless; prepare the data with the run's tokenizer");
  }
}

RunConfig saved_config(const RunState& state, const fs::path& checkpoint) {
  const std::string where = (checkpoint / "state.json").string();
  RunConfig config = config_from_toml(state.config, where);

  const int64_t vocab_size = batch_sizes(config).vocab_size;
  if (state.tokenizer && vocab_size > 0 && state.tokenizer->size() > vocab_size) {
    fail(Exit::checkpoint, where, ": the tokenizer has ", state.tokenizer->size(),
         " tokens, but the model has a vocabulary of ", vocab_size);
  }
  return config;
}

}  // namespace lathe
