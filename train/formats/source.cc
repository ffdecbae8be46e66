#include "train/formats/source.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

#include "autograd/node.h"
#include "autograd/tensor_cut.h"
#include "core/mapped_memory.h"
#include "train/config/path_kind.h"
#include "train/formats/hugging_face.h"
#include "train/formats/tensor_files.h"
#include "train/store/encoding.h"
#include "train/transforms/adapters.h"

namespace lathe {
namespace {

/// Returns model.block_size if the user gave it, and 0 otherwise.
int64_t wanted_context(const LoadedConfig& loaded) {
  return loaded.origins.contains("model.block_size") ? model_context(loaded.config) : 0;
}

/// Returns the checkpoints, newest first, that a run may resume or branch from. If the run uses one
/// of these checkpoints, the checkpoint's weights replace the weights of the source.
std::vector<fs::path> own_checkpoints(const LoadedConfig& loaded) {
  if (loaded.is_new_run) return {};
  const RunConfig& config = loaded.config;
  auto there = list_checkpoints(config.train.out_dir);
  const std::string& resume = config.checkpoint.resume;
  if (!there.empty() || resume == "auto" || resume == "never") return there;
  return {find_checkpoint(resume)};
}

/// Returns the config of a checkpoint; nullopt if it can't be read. The error is reported when the
/// run resumes from that checkpoint.
std::optional<RunConfig> readable_config(const fs::path& checkpoint) {
  try {
    return saved_config(read_state(checkpoint), checkpoint);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

LoadedConfig resolve_init_from(LoadedConfig loaded) {
  RunConfig& c = loaded.config;
  const std::string name = c.train.init_from;
  if (name.empty()) return loaded;
  const auto at = [&] { return origin_of(loaded, "train.init_from") + ": train.init_from: "; };

  if (adapters_of(c).rank > 0) {
    if (is_hugging_face(name))
      fail(Exit::usage, at(), "adapters need a run as their base, and ", name,
           " is a Hugging Face folder; import it first (`lathe import`)");
    // resolve_adapter_base() later reads the run `name` and checks it.
    c.schema().set(&c, "adapters.base", name, "train.init_from");
    return loaded;
  }

  for (const fs::path& own : own_checkpoints(loaded)) {
    if (const auto saved = readable_config(own))
      return adopt_model(std::move(loaded), saved->model, own.string());
  }

  std::optional<ModelConfig> hugging_face;
  try {
    if (is_hugging_face(name))
      hugging_face = HuggingFaceFolder(name, wanted_context(loaded)).model();
    loaded.source = hugging_face ? fs::path(name) : find_checkpoint(name);
  } catch (const Error& e) {
    // Exit::usage means here that the wanted context is longer than the model's.
    if (const int64_t context = wanted_context(loaded); context > 0 && e.code() == Exit::usage) {
      fail(Exit::usage, origin_of(loaded, "model.block_size"), ": model.block_size = ", context,
           " is above the context of ", name, "; leave it out");
    }
    fail(e.code(), at(), e.what());
  }
  if (hugging_face) return adopt_model(std::move(loaded), *hugging_face, "train.init_from");

  const RunConfig from = saved_config(read_state(loaded.source), loaded.source);
  if (adapters_of(from).rank > 0)
    fail(Exit::usage, at(), name,
         " holds adapters; merge them into their model first (`lathe merge`)");
  return adopt_model(std::move(loaded), from.model, "train.init_from");
}

LoadedConfig as_new_run(LoadedConfig loaded) {
  // The config that a run saved may name sources that no longer exist. The checkpoints beside it
  // have the model of the run.
  loaded.is_new_run =
      !loaded.path.empty() && list_checkpoints(fs::path(loaded.path).parent_path()).empty();
  return loaded;
}

LoadedConfig resolve_sources(LoadedConfig loaded) {
  return resolve_adapter_base(resolve_init_from(std::move(loaded)));
}

std::optional<Tokenizer> source_tokenizer(const LoadedConfig& loaded) {
  const fs::path& source = loaded.source.empty() ? loaded.base : loaded.source;
  if (source.empty()) return std::nullopt;
  if (!is_hugging_face(source)) return read_state(source).tokenizer;
  if (!fs::exists(source / "tokenizer.json") && !fs::exists(source / "vocab.json"))
    return std::nullopt;
  return HuggingFaceFolder(source, wanted_context(loaded)).tokenizer();
}

void check_source_tokenizer(const LoadedConfig& loaded, const DatasetInfo& facts) {
  if (loaded.source.empty()) return;
  const RunConfig& c = loaded.config;
  const std::optional<Tokenizer> tokenizer = source_tokenizer(loaded);

  const std::string remedy =
      str("; prepare it with their tokenizer: lathe prepare TEXT --tokenizer ", c.train.init_from);
  if (tokenizer && facts.tokenizer && *tokenizer != *facts.tokenizer)
    fail(Exit::data, c.data.dir,
         " was made with another tokenizer than the weights of train.init_from", remedy);

  const int64_t vocab_size = batch_sizes(c).vocab_size;
  if (facts.vocab_size > vocab_size && vocab_size > 0) {
    fail(Exit::data, c.data.dir, " has a vocabulary of ", facts.vocab_size,
         ", but the weights of train.init_from have a vocabulary of ", vocab_size, remedy);
  }
}

namespace {

/// Returns whether the run has a checkpoint that records how the run's examples are encoded.
bool has_own_encoding(const RunConfig& config) {
  for (const fs::path& own : list_checkpoints(config.train.out_dir)) {
    try {
      return read_state(own).encoding.has_value();
    } catch (const Error&) {  // the error is reported when the run resumes from the checkpoint
    }
  }
  return false;
}

}  // namespace

void normalize_as_source(const LoadedConfig& loaded, Data& data) {
  const RunConfig& c = loaded.config;
  const fs::path& source = loaded.source.empty() ? loaded.base : loaded.source;
  if (source.empty() || is_hugging_face(source) || !data.facts().encoding) return;
  if (!loaded.is_new_run && has_own_encoding(c)) return;
  const RunState state = read_state(source);
  if (state.sizes.input.empty())
    return;  // the source is a model of tokens, which another check
             // refuses

  const std::string key = loaded.source.empty() ? "adapters.base" : "train.init_from";
  const ExampleEncoding own = *data.facts().encoding;
  const ExampleEncoding theirs = [&] {
    try {
      return encoding_of(source, state, saved_config(state, source));
    } catch (const Error& e) {
      fail(e.code(), origin_of(loaded, key), ": ", key, ": ", e.what());
    }
  }();
  const auto classifies = [](const ExampleEncoding& e) { return e.targets.mean.empty(); };
  if (own.input_sizes != theirs.input_sizes || own.outputs != theirs.outputs ||
      classifies(own) != classifies(theirs)) {
    fail(Exit::data, c.data.dir,
         " differs in the sizes of its examples or in its task from the data that ",
         source.string(), " was trained on; leave out ", key,
         ", or prepare the data in the same way");
  }
  check_compatible_encoding(
      theirs, own, c.data.dir,
      "; to start from these weights, the data must have the same classes and "
      "columns");

  data.normalize_as(theirs);
  const bool is_changed = own.inputs != theirs.inputs || own.targets != theirs.targets;
  if (is_changed && !kept_encoding(data.facts())) {
    fail(Exit::data, c.data.dir, " has different statistics from the data of ", source.string(),
         ", and too many of them to keep in a checkpoint; prepare both in the same way");
  }
}

std::string source_id(const LoadedConfig& loaded) {
  if (loaded.source.empty()) return "";
  return is_hugging_face(loaded.source) ? TensorFiles(loaded.source).content_id()
                                        : model_id(loaded.source);
}

void write_part(const NamedParameter& p, const WriteValues& write) {
  const TensorCut* const cut = cut_of(p.parameter);
  if (cut == nullptr) return write(p);
  NamedParameter whole = p;
  whole.parameter = Variable(at::empty(cut->full_sizes(p.parameter.sizes()), at::kFloat));
  write(whole);
  p.parameter.data().copy_(cut->part_of(whole.parameter.data()));
}

WriteValues read_source(const LoadedConfig& loaded, size_t count) {
  if (!is_hugging_face(loaded.source)) {
    const auto saved = std::make_shared<SavedParameters>(loaded.source, count);
    return [saved](const NamedParameter& p) { saved->read(p); };
  }
  const auto folder = std::make_shared<HuggingFaceFolder>(loaded.source, wanted_context(loaded));
  const auto copy = [folder](const NamedParameter& p) {
    p.parameter.data().copy_(folder->tensor(p));
    release_pages(p.parameter.data());
  };
  return [copy](const NamedParameter& p) {
    if (p.parameter.as_leaf() != nullptr) write_part(p, copy);
  };
}

}  // namespace lathe
