// Implements the table of model kinds.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "autograd/recompute.h"
#include "dist/tensor_ranks.h"
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
      model_kind<GPT, GPTConfig>("gpt",
                                 "GPT-2: a decoder-only transformer with learned position "
                                 "embeddings (Radford et al. 2019)"),
      model_kind<Llama, LlamaConfig>("llama",
                                     "Llama and similar models: rotary positions, RMS norm, "
                                     "SwiGLU, grouped-query attention (Touvron et al. 2023)"),
      model_kind<RNN, RNNConfig>("rnn", "a recurrent language model, LSTM or GRU"),
      model_kind<MLP, MLPConfig>("mlp", "a multi-layer perceptron on examples of any shape"),
      model_kind<ConvNet, ConvNetConfig>("convnet",
                                         "a residual network on images (He et al. 2015)"),
  };
  return kinds;
}

/// Returns half of `size`, rounded down, and then the divisors of `size` that are smaller than
/// `size`, in descending order and without a second half.
std::vector<int64_t> smaller_sizes(int64_t size) {
  std::vector<int64_t> large, small;
  for (int64_t divisor = 1; divisor <= size / divisor && divisor <= 1'000'000; ++divisor) {
    if (size % divisor != 0) continue;
    if (divisor > 1) large.push_back(size / divisor);
    if (divisor < size / divisor) small.push_back(divisor);
  }
  large.insert(large.end(), small.rbegin(), small.rend());

  const int64_t half = size / 2;
  std::vector<int64_t> sizes{half};
  std::copy_if(large.begin(), large.end(), std::back_inserter(sizes),
               [half](int64_t divisor) { return divisor != half; });
  return sizes;
}

}  // namespace

const std::vector<ModelKind>& model_kinds() { return table(); }

const ModelKind* find_model_kind(const std::string& name) {
  const auto found = std::find_if(table().begin(), table().end(),
                                  [&](const ModelKind& k) { return k.name == name; });
  return found == table().end() ? nullptr : &*found;
}

void add_model_kind(ModelKind kind) {
  LATHE_CHECK(find_model_kind(kind.name) == nullptr, "there is a model kind ", kind.name,
              " already; give yours another name");
  LATHE_CHECK(kind.config.schema().find("kind") == nullptr, "model kind ", kind.name,
              ": its config has a key \"kind\", which [model] has already");
  table().push_back(std::move(kind));
}

bool halve(int64_t& size, int64_t least) {
  if (size <= least) return false;
  size = std::max(least, size / 2);
  return true;
}

int64_t half_width(int64_t size) {
  const int64_t unit = std::gcd(size, int64_t{16});
  return std::max(unit, size / 2 / unit * unit);
}

std::vector<std::vector<AnyConfig>> scaled_versions(const ModelKind& kind,
                                                    const AnyConfig& config) {
  std::vector<std::vector<AnyConfig>> ways;
  if (kind.scale_down) {
    if (auto scaled = kind.scale_down(config)) ways.push_back({std::move(*scaled)});
    return ways;
  }

  // Try the largest number first: it most likely dominates time and memory.
  std::vector<std::pair<int64_t, const Field*>> sizes;
  for (const Field& field : config.schema().fields()) {
    if (const int64_t* const size = config.find<int64_t>(field.key))
      sizes.emplace_back(*size, &field);
  }
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });

  for (const auto& [size, field] : sizes) {
    const auto least = static_cast<int64_t>(std::max(1.0, std::ceil(field->rule.min)));
    ways.emplace_back();
    for (const int64_t value : smaller_sizes(size)) {
      if (value < least) continue;
      AnyConfig scaled = config;
      *scaled.find<int64_t>(field->key) = value;
      // Keep a version only if it passes the kind's check, for example that the number of heads
      // divides the width.
      if (!kind.check || !kind.check(scaled)) ways.back().push_back(std::move(scaled));
    }
  }
  return ways;
}

namespace {

/// Returns c tanh(logits / c) for a softcap c. Without a softcap, returns the logits.
Variable capped(const Variable& logits, double softcap) {
  if (softcap == 0) return logits;
  const Variable wide = logits.dtype() == at::kDouble ? logits : cast(logits, at::kFloat);
  return tanh(wide / softcap) * softcap;
}

}  // namespace

Variable head_logits(const Variable& x, const Variable& weight, double softcap) {
  if (!is_cut(weight, 0)) return capped(linear(x, weight), softcap);
  return gather_from_tensor_ranks(capped(linear(copy_to_tensor_ranks(x), weight), softcap),
                                  *cut_of(weight));
}

int64_t logit_rows_per_chunk(const Variable& weight) {
  constexpr int64_t elements = int64_t{1} << 25;
  const TensorCut* const cut = cut_of(weight);
  const int64_t columns =
      cut == nullptr ? weight.size(0) : (cut->sections.at(0) + cut->parts - 1) / cut->parts;
  return std::max<int64_t>(1, elements / columns);
}

Variable head_cross_entropy(const Variable& x_, const Variable& weight, double softcap,
                            const at::Tensor& targets, double divisor) {
  const TensorCut* const cut = cut_of(weight);
  if (softcap == 0 && cut == nullptr) return linear_cross_entropy(x_, weight, targets, divisor);

  const Variable x = cut == nullptr ? x_ : copy_to_tensor_ranks(x_);
  const auto loss_of = [=](const Variable& rows, const at::Tensor& wanted) {
    const Variable logits = capped(linear(rows, weight), softcap);
    return cut == nullptr ? cross_entropy(logits, wanted, divisor)
                          : cross_entropy_of_tensor_ranks(logits, *cut, wanted, divisor);
  };
  // With a divisor of 0, the loss divides by the number of targets of all rows, so it is computed
  // for all rows together.
  if (divisor == 0 || x.size(0) == 0) return loss_of(x, targets);

  const int64_t step = logit_rows_per_chunk(weight);
  Variable total;
  for (int64_t begin = 0; begin < x.size(0); begin += step) {
    const int64_t end = std::min(begin + step, x.size(0));
    const at::Tensor wanted = targets.slice(0, begin, end);
    const Variable loss =
        recompute([loss_of, wanted](const Variable& rows) { return loss_of(rows, wanted); },
                  slice(x, 0, begin, end));
    total = total.defined() ? total + loss : loss;
  }
  return total;
}

double matmul_flops(const std::vector<NamedParameter>& parameters) {
  double flops = 0;
  for (const auto& p : parameters) {
    if (p.role == Role::embedding) continue;
    flops += (is_trained(p.parameter) ? 6.0 : 4.0) * static_cast<double>(full_numel(p.parameter));
  }
  return flops;
}

void initialize(const std::vector<NamedParameter>& parameters, const AnyConfig& config,
                uint64_t seed) {
  const std::string* init = config.find<std::string>("init");
  const int64_t* depth = config.find<int64_t>("n_layer");
  initialize(parameters, init != nullptr ? init_from_config(*init) : Init::kaiming,
             depth != nullptr ? *depth : 1, seed);
}

std::unique_ptr<Model> make_model(const ModelKind& kind, const AnyConfig& config,
                                  const ModelSizes& sizes, uint64_t seed) {
  auto model = kind.make(config, sizes);
  initialize(parameters(*model), config, seed);
  return model;
}

}  // namespace lathe
