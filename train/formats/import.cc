#include "train/formats/import.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/isa.h"
#include "core/mode.h"
#include "data/tokenizers/chat_template.h"
#include "train/store/run_folder.h"

namespace lathe {

void ModelSource::set_model(const std::string& kind_name,
                            const std::map<std::string, ConfigValue>& values,
                            const std::string& where) {
  const ModelKind* kind = find_model_kind(kind_name);
  if (kind == nullptr)
    fail(Exit::checkpoint, where, ": this build has no model kind \"", kind_name,
         "\", which the model needs");

  RunConfig config;
  config.model.kind = kind_name;
  config.model.own = kind->config;
  // A value that the schema refuses is a fault of the file, not of the command line.
  try {
    for (const auto& [key, value] : values)
      config.schema().set(&config, "model." + key, value, where);
  } catch (const Error& e) {
    fail(Exit::checkpoint, e.what());
  }
  if (const auto fault = kind->check(config.model.own))
    fail(Exit::checkpoint, where, ": ", fault->what);

  model_ = config.model;
  const MetaInit guard;
  shapes_ = kind->make(model_.own, {});
  parameters_ = lathe::parameters(*shapes_);
}

at::Tensor tensor_of(const TensorEntry& entry) {
  const at::ScalarType dtype = *dtype_from_safetensors(entry.dtype);
  const auto address = reinterpret_cast<uintptr_t>(entry.bytes.data());
  if (address % static_cast<uintptr_t>(c10::elementSize(dtype)) == 0)
    return entry_tensor(entry, entry.shape, {});
  const at::Tensor copy = at::empty(entry.shape, dtype);
  std::memcpy(copy.mutable_data_ptr(), entry.bytes.data(), entry.bytes.size());
  return copy;
}

void check_finite(const at::Tensor& t, const std::string& where) {
  if (t.numel() == 0) return;
  const auto [least, largest] = at::aminmax(t);  // both are NaN if an element is NaN
  if (!std::isfinite(least.item<double>()) || !std::isfinite(largest.item<double>()))
    fail(Exit::diverged, where, " has elements that are not finite");
}

void check_vocabulary(const Tokenizer& tokenizer, const fs::path& path, const ModelConfig& model) {
  const int64_t vocab_size = *model.own.find<int64_t>("vocab_size");
  if (tokenizer.size() > vocab_size) {
    fail(Exit::data, path.string(), ": the tokenizer has ", tokenizer.size(),
         " tokens, but the model has a vocabulary of ", vocab_size);
  }
}

namespace {

/// Returns the tokenizer that the options ask for, with the settings of the model. Returns nullopt
/// if the options ask for no tokenizer.
std::optional<Tokenizer> chosen_tokenizer(const ModelSource& source, const ImportOptions& o) {
  std::optional<Tokenizer> tokenizer;
  // Check the settings before the try block. Its catch block suggests another tokenizer, which does
  // not fix an error in the settings.
  if (o.tokenizer == "auto") (void)source.settings();

  if (o.tokenizer == "auto") {
    try {
      tokenizer = source.tokenizer();
    } catch (const Error& e) {
      fail(e.code(), e.what(),
           "; give another one as --tokenizer PATH, or --tokenizer none for the weights alone");
    }
  } else if (o.tokenizer != "none") {
    tokenizer = Tokenizer::bpe(o.tokenizer);
    check_vocabulary(*tokenizer, o.tokenizer, source.model());
    // The settings that came with the weights have precedence over the settings of the given
    // tokenizer.
    TokenizerSettings settings = source.settings();
    settings.fill_from(tokenizer->settings());
    // They may name special tokens that the given tokenizer lacks.
    for (const auto name : {&TokenizerSettings::bos_token, &TokenizerSettings::eos_token,
                            &TokenizerSettings::pad_token}) {
      if (!(settings.*name).empty() && tokenizer->bpe()->id_of(settings.*name) < 0)
        settings.*name = tokenizer->settings().*name;
    }
    tokenizer->set_settings(std::move(settings));
  }

  if (!o.chat_template.empty()) {
    if (!tokenizer)
      fail(Exit::usage,
           "command line: --chat-template has no effect with --tokenizer none; leave one of them "
           "out");
    set_chat_template(*tokenizer, o.chat_template);
  }
  return tokenizer;
}

}  // namespace

fs::path import_model(const ModelSource& source, const ImportOptions& o) {
  RunState state;
  state.imported_from = o.folder.string();
  state.ignored_keys = o.ignored_keys;
  state.tokenizer = chosen_tokenizer(source, o);

  RunConfig config;
  config.model = source.model();
  config.data.dir = "";
  config.train.batch_size = 1;
  config.train.out_dir = o.out.string();
  // A saved config has the resolved value of schedule.min_lr, as end_of_schedule() returns it for
  // the default config.
  config.schedule.min_lr = config.optim.lr / 10;

  state.config = config.schema().to_toml(&config, /*comments=*/false);
  state.threads = default_threads();
  state.isa = cpu_isa();
  state.device_model = device_model("cpu");

  NewFolder out(o.out, o.stop);
  Snapshot snapshot;
  for (const NamedParameter& p : source.parameters()) {
    // Runs keep vectors in float32, whatever the dtype of their matrices.
    const at::ScalarType dtype = p.parameter.dim() < 2 ? at::kFloat : source.dtype(p);
    snapshot.model.push_back(make_entry(p.path, dtype, p.parameter.sizes().vec(), [&, dtype] {
      out.check_stop();
      return source.tensor(p).to(dtype);
    }));
  }

  make_folders(out.path() / "checkpoints");
  write_checkpoint(out.path() / "checkpoints" / checkpoint_name(0), state, snapshot);
  write_config_record(out.path(), config, {});
  out.publish();
  return o.out / "checkpoints" / checkpoint_name(0);
}

}  // namespace lathe
