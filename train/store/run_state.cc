#include "train/store/run_state.h"

#include <cmath>
#include <limits>

#include "core/io/text.h"
#include "train/store/checkpoint_folder.h"

namespace lathe {
namespace {

/// Reads what the model was made for.
ModelSizes read_sizes(const Json& json, const std::string& where) {
  constexpr int64_t largest = int64_t{1} << 40;
  ModelSizes sizes;
  sizes.input = json_get<std::vector<int64_t>>(json, "input", where, Exit::checkpoint);
  sizes.outputs = json_whole(json, "outputs", 1, largest, where, Exit::checkpoint);

  int64_t product = 1;
  for (const int64_t size : sizes.input) {
    if (size < 1 || size > largest / product)
      fail(Exit::checkpoint, where, ": \"input\" has a size of ", size);
    product *= size;
  }
  return sizes;
}

ScaleState read_scaler(const Json& json, int64_t step, const std::string& where) {
  const auto count = [&](const char* key, int64_t max) {
    return json_whole(json, key, 0, max, where, Exit::checkpoint);
  };
  ScaleState scale;
  scale.scale = static_cast<float>(json_real(json, "loss_scale", where, Exit::checkpoint));
  scale.growth_tracker =
      static_cast<int32_t>(count("growth_tracker", std::numeric_limits<int32_t>::max()));
  scale.skipped = count("skipped", step);
  scale.skipped_in_row = count("skipped_in_row", scale.skipped);

  if (!(scale.scale > 0) || !std::isfinite(scale.scale)) {
    fail(Exit::checkpoint, where, ": \"loss_scale\" is ", scale.scale,
         "; it must be above 0 and within float32's range");
  }
  return scale;
}

ExampleEncoding read_examples(const Json& json, const std::string& where) {
  // The task may be one of a user, so its name does not show what the targets are.
  return read_encoding(json, !json.contains("targets"), where + ": examples", Exit::checkpoint);
}

SpikeState read_spikes(const Json& json, int64_t step, const std::string& where) {
  const auto count = [&](const char* key) {
    return json_whole(json, key, 0, step, where, Exit::checkpoint);
  };
  const auto real = [&](const char* key) { return json_real(json, key, where, Exit::checkpoint); };
  return {count("seen"), real("mean"), real("variance"), count("skipped"), count("skipped_in_row")};
}

}  // namespace

bool has_stalled(const RunState& state, int64_t interval, int64_t evaluations) {
  return evaluations > 0 && interval > 0 &&
         state.val_step / interval - state.best_step / interval >= evaluations;
}

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

  // Keys that would hold a default are left out.
  for (const auto& [file, bytes] : s.sink_bytes) json["sink_bytes"][file] = bytes;
  if (s.eval_due) json["eval_due"] = true;
  if (!s.config_path.empty()) json["config_path"] = s.config_path;
  for (const ConfigChange& c : s.changes)
    json["changes"].push_back({{"step", c.step}, {"key", c.key}, {"was", c.was}, {"is", c.is}});
  if (!s.branched_from.empty()) json["branched_from"] = s.branched_from;
  if (!s.branched_id.empty()) json["branched_id"] = s.branched_id;

  if (!s.imported_from.empty())
    json["imported"] = {{"folder", s.imported_from}, {"ignored_keys", s.ignored_keys}};

  if (s.val_loss) json["val_loss"] = json_number(*s.val_loss);
  if (s.best_val_loss) json["best_val_loss"] = json_number(*s.best_val_loss);
  if (s.val_step >= 0) json["val_step"] = s.val_step;
  if (s.best_step >= 0) json["best_step"] = s.best_step;

  if (s.task != "language") json["task"] = s.task;
  if (s.sizes.outputs > 0) json["sizes"] = {{"input", s.sizes.input}, {"outputs", s.sizes.outputs}};
  if (s.encoding) add_encoding(json["examples"] = Json::object(), *s.encoding);
  if (!s.base_hash.empty()) json["base_hash"] = s.base_hash;
  if (!s.frozen_hash.empty()) json["frozen_hash"] = s.frozen_hash;

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

RunState read_state(const fs::path& checkpoint) {
  const fs::path path = checkpoint / "state.json";
  const std::string where = path.string();
  const Json j =
      parse_json(read_file(path, Exit::checkpoint, max_checkpoint_json), where, Exit::checkpoint);
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const auto number = [&](const char* key, int64_t max, int64_t min = 0) {
    return json_whole(j, key, min, max, where, Exit::checkpoint);
  };
  const auto text = [&](const char* key) {
    return json_get<std::string>(j, key, where, Exit::checkpoint);
  };

  // The step bounds the counters below.
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
    if (!files.is_object()) fail(Exit::checkpoint, where, ": \"sink_bytes\" is not an object");
    for (const auto& [file, bytes] : files.items())
      s.sink_bytes[file] =
          static_cast<uint64_t>(json_whole(files, file.c_str(), 0, most, where, Exit::checkpoint));
  }

  s.config = text("config");
  s.eval_due = j.contains("eval_due") && json_get<bool>(j, "eval_due", where, Exit::checkpoint);
  if (j.contains("branched_from")) s.branched_from = text("branched_from");
  if (j.contains("branched_id")) s.branched_id = text("branched_id");
  if (j.contains("config_path")) s.config_path = text("config_path");
  if (j.contains("imported")) {
    const Json& imported = j["imported"];
    s.imported_from = json_get<std::string>(imported, "folder", where, Exit::checkpoint);
    s.ignored_keys =
        json_get<std::vector<std::string>>(imported, "ignored_keys", where, Exit::checkpoint);
  }

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
  if (j.contains("sizes")) s.sizes = read_sizes(j["sizes"], where);
  if (j.contains("examples"))
    s.encoding = read_examples(json_get<Json>(j, "examples", where, Exit::checkpoint), where);
  if (j.contains("base_hash")) s.base_hash = text("base_hash");
  if (j.contains("frozen_hash")) s.frozen_hash = text("frozen_hash");
  if (j.contains("scaler")) s.scaler = read_scaler(j["scaler"], s.step, where);
  if (j.contains("spikes")) s.spikes = read_spikes(j["spikes"], s.step, where);

  if (j.contains("tokenizer")) {
    try {
      s.tokenizer = Tokenizer::from_json(j["tokenizer"], "kind", where);
    } catch (const Error& e) {
      fail(Exit::checkpoint, e.what());
    }
  }

  return s;
}

std::optional<ExampleEncoding> kept_encoding(const DatasetInfo& facts) {
  constexpr size_t most = 65536;
  const bool is_small = facts.encoding && facts.encoding->inputs.mean.size() <= most &&
                        facts.encoding->targets.mean.size() <= most;
  return is_small ? facts.encoding : std::nullopt;
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

}  // namespace lathe
