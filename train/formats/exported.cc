#include "train/formats/exported.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <set>
#include <tuple>

#include "core/dtype.h"
#include "core/mode.h"
#include "data/tokenizers/chat_template.h"
#include "train/transforms/adapters.h"

namespace lathe {

namespace {

/// Returns the name of a dtype in configs.
std::string config_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

std::string saved_dtype(const CheckpointTensors& file) {
  for (const TensorEntry& t : file.tensors()) {
    if (const auto dtype = dtype_from_safetensors(t.dtype); dtype && t.shape.size() == 2)
      return config_name(*dtype);
  }
  return "fp32";
}

}  // namespace

std::pair<const Family*, Json> family_for(const RunConfig& config) {
  std::string kinds;
  for (const Family& family : families()) {
    std::string name = family.kind;
    if (family.kind == config.model.kind) {
      if (auto written = family.write(config.model.own)) return {&family, std::move(*written)};
      name += " with other keys of [model]";
    }
    if (kinds.find(name) == std::string::npos) kinds += (kinds.empty() ? "" : ", ") + name;
  }
  fail(Exit::usage, "this model of kind ", config.model.kind,
       " can't be exported in this format, which takes ", kinds,
       "; --format onnx takes mlp, convnet, rnn and gpt");
}

void check_exportable(const ExportOptions& o, const RunConfig& config) {
  if (adapters_of(config).rank > 0)
    fail(Exit::usage, o.run.string(),
         " holds adapters; merge them into their model first (`lathe merge",
         o.average ? " --weights ema" : "", "`)");
  if (o.average) check_averages(config);
}

ExportedModel::ExportedModel(const ExportOptions& o) : average_(o.average) {
  const fs::path checkpoint = find_checkpoint(o.run, o.checkpoint);
  state = read_state(checkpoint);
  config = saved_config(state, checkpoint);

  if (!o.chat_template.empty()) {
    if (!state.tokenizer)
      fail(Exit::usage, "command line: --chat-template: ", o.run.string(),
           " has no tokenizer; leave it out");
    set_chat_template(*state.tokenizer, o.chat_template);
  }

  check_exportable(o, config);
  model_ = std::make_unique<CheckpointTensors>(checkpoint, CheckpointPart::model);
  // Checkpoints keep the moving averages with the optimizer state.
  if (average_)
    optimizer_ = std::make_unique<CheckpointTensors>(checkpoint, CheckpointPart::optimizer);
  dtype = o.dtype.empty() ? saved_dtype(*model_) : o.dtype;

  // The model has shapes but no values. read() loads the values of one parameter at a time.
  const MetaInit guard;
  shapes = find_model_kind(config.model.kind)->make(config.model.own, state.sizes);
  parameters = lathe::parameters(*shapes);

  // If n_inner is 0, the model chooses the width of the MLP. config.json needs the actual width.
  if (int64_t* inner = config.model.own.find<int64_t>("n_inner"); inner != nullptr && *inner == 0) {
    for (const NamedParameter& p : parameters) {
      if (p.path == "blocks.0.mlp.up.weight") *inner = p.parameter.size(0);
    }
  }

  std::tie(family, family_config) = family_for(config);
}

at::ScalarType ExportedModel::dtype_of(const NamedParameter& p) const {
  return p.parameter.dim() >= 2 ? dtype_from_config(dtype) : at::kFloat;
}

at::Tensor ExportedModel::read(const NamedParameter& p) const {
  // Release the previous tensor, so that only one tensor of the checkpoint is in memory at a time.
  if (release_) release_();
  release_ = nullptr;

  // Frozen parameters have no moving average.
  const TensorEntry* average = average_ ? optimizer_->find(p.path + "." + average_name) : nullptr;
  const CheckpointTensors& file = average != nullptr ? *optimizer_ : *model_;
  const TensorEntry& entry = average != nullptr ? *average : model_->at(p.path);

  release_ = [&file, &entry] { file.release(entry); };

  at::Tensor t = entry_tensor(entry, p.parameter.sizes(), model_->path());
  const at::ScalarType wanted = dtype_of(p);
  if (t.scalar_type() == wanted) return t;
  const at::Tensor cast = t.to(wanted);
  if (wanted == at::kHalf && !at::isfinite(cast).all().item<bool>())
    fail(Exit::usage, model_->path().string(), ": tensor \"", p.path,
         "\" has values beyond float16's range; give --dtype bf16");
  return cast;
}

std::vector<ExportedTensor> ExportedModel::tensors() const {
  std::set<std::string> paths;
  for (const NamedParameter& p : parameters) paths.insert(p.path);

  std::vector<ExportedTensor> all;
  for (const NamedParameter& p : parameters) {
    const auto [rule, block] = rule_of(*family, p.path);
    LATHE_CHECK(rule != nullptr, "the family ", family->model_type, " has no rule for ", p.path);
    all.push_back({.rule = rule,
                   .block = block,
                   .sizes = p.parameter.sizes().vec(),
                   .dtype = dtype_of(p),
                   .read = [&] { return read(p); }});

    if (!p.path.ends_with("weight")) continue;
    const std::string bias = p.path.substr(0, p.path.size() - std::strlen("weight")) + "bias";
    const auto [bias_rule, bias_block] = rule_of(*family, bias);
    if (bias_rule == nullptr || !bias_rule->always || paths.contains(bias)) continue;
    const int64_t size = p.parameter.size(0);
    all.push_back({
        .rule = bias_rule,
        .block = bias_block,
        .sizes = {size},
        .dtype = at::kFloat,
        .read = [=] { return at::zeros({size}); },
    });
  }
  return all;
}

}  // namespace lathe
