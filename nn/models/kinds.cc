// The table of model kinds.
#include <algorithm>

#include "nn/init.h"
#include "nn/models/convnet.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/mlp.h"
#include "nn/models/model.h"
#include "nn/models/rnn.h"

namespace lathe {
namespace {

std::vector<ModelKind>& table() {
  static std::vector<ModelKind> kinds{
      model_kind<GPT, GPTConfig>("gpt", "GPT-2: a decoder of tokens with learned positions (Radford et al. 2019)"),
      model_kind<Llama, LlamaConfig>(
          "llama", "LLaMA and relatives: rotary positions, RMS norm, SwiGLU, grouped queries (Touvron et al. 2023)"),
      model_kind<RNN, RNNConfig>("rnn", "a recurrent model of tokens, LSTM or GRU"),
      model_kind<MLP, MLPConfig>("mlp", "a multi-layer perceptron on examples of any shape"),
      model_kind<ConvNet, ConvNetConfig>("convnet", "a residual network on images (He et al. 2015)"),
  };
  return kinds;
}

}  // namespace

const std::vector<ModelKind>& model_kinds() { return table(); }

const ModelKind* find_model_kind(const std::string& name) {
  const auto found = std::find_if(table().begin(), table().end(), [&](const ModelKind& k) { return k.name == name; });
  return found == table().end() ? nullptr : &*found;
}

void add_model_kind(ModelKind kind) {
  LATHE_CHECK(find_model_kind(kind.name) == nullptr, "there is a model kind ", kind.name,
              " already; give yours another name");
  LATHE_CHECK(kind.config.schema().find("kind") == nullptr, "model kind ", kind.name,
              ": its config has a key \"kind\", which [model] has already");
  table().push_back(std::move(kind));
}

double matmul_flops(const std::vector<NamedParameter>& parameters) {
  double flops = 0;
  for (const auto& p : parameters) {
    if (p.role == Role::embedding) continue;
    flops += (is_trained(p.parameter) ? 6.0 : 4.0) * static_cast<double>(p.parameter.numel());
  }
  return flops;
}

void initialize(const std::vector<NamedParameter>& parameters, const AnyConfig& config, uint64_t seed) {
  const std::string* init = config.find<std::string>("init");
  const int64_t* depth = config.find<int64_t>("n_layer");
  initialize(parameters, init != nullptr ? init_from_config(*init) : Init::kaiming, depth != nullptr ? *depth : 1,
             seed);
}

std::unique_ptr<Model> make_model(const ModelKind& kind, const AnyConfig& config, const ModelSizes& sizes,
                                  uint64_t seed) {
  auto model = kind.make(config, sizes);
  initialize(parameters(*model), config, seed);
  return model;
}

}  // namespace lathe
