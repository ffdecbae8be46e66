#include "train/transforms/adapters.h"

#include "core/dtype.h"
#include "core/io/json.h"
#include "core/kernels/gemm.h"
#include "core/memory.h"
#include "train/run/load.h"

namespace lathe {

fs::path find_base(const RunConfig& config) {
  try {
    return find_checkpoint(config.model.lora_base);
  } catch (const Error& e) {
    fail(e.code(), "model.lora_base: ", e.what());
  }
}

void adopt_base(LoadedConfig& loaded) {
  RunConfig& c = loaded.config;
  if (c.model.lora == 0) return;
  const fs::path base = loaded.base = find_base(c);
  const RunConfig from = saved_config(read_state(base), base);
  if (from.model.lora > 0) {
    fail(Exit::usage, origin_of(loaded, "model.lora_base"), ": ", c.model.lora_base,
         " holds adapters itself; merge it first (`lathe merge`)");
  }
  for (const auto& f : run_schema().fields()) {
    if (!f.key.starts_with("model.") || f.key.starts_with("model.lora") || f.key == "model.dropout") continue;
    const ConfigValue theirs = run_schema().get(&from, f), ours = run_schema().get(&c, f);
    const bool from_data = f.key == "model.vocab_size" && c.model.vocab_size == 0;
    if (loaded.origins.contains(f.key) && ours != theirs && !from_data) {
      fail(Exit::usage, origin_of(loaded, f.key), ": ", f.key, " = ", toml_text(ours), ", but model.lora_base has ",
           toml_text(theirs), "; leave it out");
    }
    run_schema().set(&c, f.key, theirs, base.string());
  }
}

GPT load_base(const fs::path& base, const RunConfig& config, at::Device device) {
  const ModelConfig& m = config.model;
  return load_frozen(base, m, {m.lora_dtype, m.lora_double_quant, matmul_dtype(compute_dtype(config.amp))}, device);
}

std::string base_hash(const fs::path& base) {
  if (base.empty()) return "";
  const fs::path path = base / "manifest.json";
  const Json manifest = parse_json(read_file(path, Exit::checkpoint), path.string(), Exit::checkpoint);
  const Json files = json_get<Json>(manifest, "files", path.string(), Exit::checkpoint);
  const Json model = json_get<Json>(files, "model.safetensors", path.string(), Exit::checkpoint);
  return json_get<std::string>(model, "xxh3", path.string(), Exit::checkpoint);
}

void check_base(const fs::path& base, const RunConfig& config, const std::string& hash) {
  if (const std::string now = base_hash(base); now != hash) {
    fail(Exit::checkpoint, "model.lora_base = ", config.model.lora_base,
         " is not what the adapters were trained on (checksum ", now, " instead of ", hash,
         "); has it been trained further? Name the checkpoint itself instead of its run");
  }
}

void check_base_tokenizer(const LoadedConfig& loaded, const std::optional<DataManifest>& manifest) {
  if (!loaded.base.empty()) check_tokenizer(loaded.config.data.dir, manifest, read_state(loaded.base));
}

fs::path merge(const fs::path& run, const fs::path& out) {
  const fs::path checkpoint = find_checkpoint(run);
  RunState state = read_state(checkpoint);
  RunConfig config = saved_config(state, checkpoint);
  if (config.model.lora == 0) fail(Exit::usage, run.string(), " has no adapters to merge: its model.lora is 0");
  if (!list_checkpoints(out).empty())
    fail(Exit::usage, out.string(), " already holds a run; give another folder with --out");
  install_allocator();
  const fs::path base = find_base(config);
  check_base(base, config, state.base_hash);
  GPT model = load_frozen(base, config.model, {}, at::kCPU);
  load_parameters(checkpoint, trained_parameters(model));
  model.merge_adapters();
  replace_parameters(model, [](const NamedParameter& p) { return Variable::parameter(p.parameter.data(), p.path); });
  const ModelConfig plain;
  config.model.lora = plain.lora;
  config.model.lora_alpha = plain.lora_alpha;
  config.model.lora_base = plain.lora_base;
  config.model.lora_dtype = plain.lora_dtype;
  config.model.lora_double_quant = plain.lora_double_quant;
  OptimConfig stateless;
  stateless.kind = "sgd";
  state.config = run_schema().to_toml(&config, /*comments=*/false);
  state.metrics_bytes = 0;
  state.eval_due = false;
  state.val_loss.reset(), state.best_val_loss.reset();  // they were the unmerged model's
  state.val_step = state.best_step = -1;
  state.scaler.reset();
  state.branched_from.clear(), state.branched_id.clear();
  state.config_path.clear(), state.changes.clear();
  state.base_hash.clear();
  const auto params = parameters(model);
  return save_checkpoint(out, state, params, Optimizer(stateless, params), Retention{});
}

}  // namespace lathe
