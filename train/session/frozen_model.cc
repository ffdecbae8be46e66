#include "train/session/frozen_model.h"

#include <ATen/ops/zeros.h>

#include "core/memory.h"
#include "core/mode.h"
#include "train/config/path_kind.h"
#include "train/formats/hugging_face.h"
#include "train/transforms/adapters.h"
#include "train/transforms/frozen.h"

namespace lathe {
namespace {

/// Returns the folder that the config's key `key` names. If the task needs no frozen model, `key`
/// is empty, and so is the result.
std::string frozen_name(const RunConfig& c, const std::string& key) {
  return key.empty() ? "" : std::get<std::string>(c.schema().get(&c, *c.schema().find(key)));
}

/// Returns the context length with which to read the Hugging Face folder that the key `key` names.
/// Returns model.block_size if the user gave it and the run begins with the folder's weights.
/// Otherwise, returns 0, which means the context length that the model was made for.
int64_t context_of(const LoadedConfig& loaded, const std::string& key) {
  const bool is_given = loaded.origins.contains("model.block_size");
  return key == "train.init_from" && is_given ? model_context(loaded.config) : 0;
}

/// Returns the tokenizer of a Hugging Face folder; nullopt if the folder has none.
std::optional<Tokenizer> tokenizer_of(const fs::path& path, const HuggingFaceFolder& folder) {
  const bool has_one = fs::exists(path / "tokenizer.json") || fs::exists(path / "vocab.json");
  return has_one ? std::optional(folder.tokenizer()) : std::nullopt;
}

void check_same_tokenizer(const LoadedConfig& loaded, const std::string& key,
                          const std::optional<Tokenizer>& tokenizer, const DatasetInfo& facts) {
  if (!tokenizer || !facts.tokenizer || *tokenizer == *facts.tokenizer) return;
  fail(Exit::data, loaded.config.data.dir, " was made with another tokenizer than the model of ",
       key, "; prepare it with that model's tokenizer: lathe prepare ... --tokenizer ",
       frozen_name(loaded.config, key));
}

/// Throws Exit::usage if the context of the frozen model is shorter than a window.
void check_context(const LoadedConfig& loaded, const std::string& key) {
  const int64_t* context = loaded.frozen_model->own.find<int64_t>("block_size");
  const int64_t window = batch_sizes(loaded.config).block_size;
  if (context == nullptr || window <= *context) return;
  fail(Exit::usage, origin_of(loaded, key), ": the model of ", key, " has a context of ", *context,
       " tokens, but a window has ", window, "; lower ", window_key(loaded.config));
}

std::unique_ptr<Model> make_shapes(const ModelConfig& config, const ModelSizes& sizes) {
  const MetaInit guard;
  return find_model_kind(config.kind)->make(config.own, sizes);
}

std::unique_ptr<Model> load_frozen_model(const LoadedConfig& loaded, const std::string& key,
                                         const ModelSizes& sizes, at::Device device) {
  const MemoryScope memory(Memory::parameters);
  const ModelConfig& config = *loaded.frozen_model;
  if (loaded.frozen.empty()) {
    auto model = make_shapes(config, sizes);
    replace_parameters(*model, [&](const NamedParameter& p) {
      return Variable(at::zeros(p.parameter.sizes(), at::TensorOptions(device)));
    });
    replace_buffers(*model, [&](const NamedBuffer& b) {
      return at::zeros(b.tensor.sizes(), b.tensor.options().device(device));
    });
    return model;
  }

  if (!is_hugging_face(loaded.frozen)) {
    const RunState state = read_state(loaded.frozen);
    return load_frozen(loaded.frozen, saved_config(state, loaded.frozen), state.sizes, {}, device);
  }
  const HuggingFaceFolder folder(loaded.frozen, context_of(loaded, key));
  auto model = make_shapes(config, sizes);
  replace_parameters(*model, [&](const NamedParameter& p) {
    return keep_frozen(p, folder.tensor(p), {}, device);
  });
  return model;
}

}  // namespace

namespace {

/// Throws Exit::usage if the frozen model is not of a kind that the run's data needs.
void check_kind(const LoadedConfig& loaded, const std::string& key, const std::string& name) {
  const std::string where = origin_of(loaded, key);
  const ModelKind& kind = *find_model_kind(loaded.frozen_model->kind);
  if (!kind.models_tokens()) {
    fail(Exit::usage, where, ": ", key, ": ", name, " has a model of kind ", kind.name,
         ", which does not predict tokens; name a language model");
  }
  if (loaded.config.data.documents == "separate" && !kind.separates_documents) {
    fail(Exit::usage, where, ": ", key, ": ", name, " has a model of kind ", kind.name,
         ", which can't keep documents of a window apart; name a model of kind gpt or llama, or "
         "set data.documents = \"joined\"");
  }
}

}  // namespace

LoadedConfig resolve_frozen(LoadedConfig loaded, const Task& task, const DatasetInfo& facts) {
  const std::string key = task.frozen_key(loaded.config);
  if (key.empty() || loaded.frozen_model) return loaded;
  const std::string name = frozen_name(loaded.config, key), where = origin_of(loaded, key);
  if (name.empty()) fail(Exit::usage, where, ": the task ", task.name(), " needs ", key);

  std::optional<HuggingFaceFolder> folder;
  try {
    if (is_hugging_face(name))
      folder.emplace(name, context_of(loaded, key));
    else
      loaded.frozen = find_checkpoint(name);
  } catch (const Error& e) {
    fail(e.code(), where, ": ", key, ", which the task ", task.name(), " needs: ", e.what());
  }
  if (folder) {
    check_same_tokenizer(loaded, key, tokenizer_of(name, *folder), facts);
    loaded.frozen_model = folder->model();
    loaded.frozen = name;
    check_context(loaded, key);
    return loaded;
  }

  const RunState state = read_state(loaded.frozen);
  const RunConfig from = saved_config(state, loaded.frozen);
  if (adapters_of(from).rank > 0)
    fail(Exit::usage, where, ": ", key, ": ", name,
         " holds adapters; merge them into their model first (`lathe merge`)");
  loaded.frozen_model = from.model;
  check_kind(loaded, key, name);
  check_same_tokenizer(loaded, key, state.tokenizer, facts);
  check_context(loaded, key);
  return loaded;
}

RunTask make_run_task(const LoadedConfig& loaded, const Task& task, const ModelSizes& sizes,
                      at::Device device) {
  RunTask made;
  std::unique_ptr<Model> frozen;
  if (const std::string key = task.frozen_key(loaded.config); !key.empty()) {
    LATHE_CHECK(loaded.frozen_model, "the frozen model of ", key, " was not resolved");
    frozen = load_frozen_model(loaded, key, sizes, device);
    if (!loaded.frozen.empty()) made.frozen_hash = weights_checksum(*frozen);
  }
  made.own = task.of_run(loaded.config, std::move(frozen));
  return made;
}

RunTask make_run_task(const LoadedModel& m, const Task& task, const DatasetInfo& facts) {
  LoadedConfig loaded{.config = m.config, .origins = {}};
  // The saved config has the context length to which the weights of a Hugging Face folder were cut.
  loaded.origins["model.block_size"] = loaded.origins[task.frozen_key(m.config)] =
      "config of the run";
  RunTask made =
      make_run_task(resolve_frozen(std::move(loaded), task, facts), task, m.state.sizes, m.device);
  check_frozen(m.config, task, m.state, made.frozen_hash);
  return made;
}

void check_frozen(const RunConfig& config, const Task& task, const RunState& saved,
                  const std::string& now) {
  const std::string key = task.frozen_key(config);
  // Merged runs of earlier builds record no checksum.
  if (key.empty() || saved.frozen_hash.empty() || saved.frozen_hash == now) return;
  fail(Exit::checkpoint, key, " = ", frozen_name(config, key),
       " is not the model that the run was trained with (checksum ", now, " instead of ",
       saved.frozen_hash,
       "); if that model was trained further, name the earlier checkpoint instead of the model's "
       "run");
}

}  // namespace lathe
