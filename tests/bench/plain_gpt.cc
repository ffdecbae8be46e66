// Adds the model kind "plain": GPT-2 whose norms, activations and attention are written in plain
// ops. tests/bench/plain_ops.py compares this kind with the built-in kind "gpt".
#include <ATen/ops/ones.h>

#include <cmath>
#include <numbers>

#include "lathe/autograd/ops.h"
#include "lathe/autograd/recompute.h"
#include "lathe/nn/layers.h"
#include "lathe/nn/models/model.h"
#include "lathe/train/commands/cli.h"

using namespace lathe;

struct PlainConfig {
  LATHE_FIELD(int64_t, n_layer, 4, "Number of blocks.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_head, 4, "Number of attention heads.", between(1, 1000).fixed())
  LATHE_FIELD(int64_t, n_embd, 128, "Width of the residual stream.", between(1, 100000).fixed())
  LATHE_FIELD(int64_t, block_size, 64, "Context length.", between(1, 1000000).fixed())
  LATHE_FIELD(int64_t, vocab_size, 0, "Size of the vocabulary.", between(0, 10000000).fixed())
};

struct PlainNorm {
  Variable weight, bias;

  explicit PlainNorm(int64_t n) : weight(new_parameter({n})), bias(new_parameter({n})) {}
  Variable operator()(const Variable& x) const {
    const Variable centered = x - mean(x, {-1}, true);
    const Variable variance = mean(centered * centered, {-1}, true);
    return centered * rsqrt(variance + 1e-5) * weight + bias;
  }
  void visit(Visit& v) {
    v("weight", weight, Role::scale);
    v("bias", bias, Role::bias);
  }
};

Variable plain_gelu(const Variable& x) {
  const double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  return 0.5 * x * (1.0 + tanh(scale * (x + 0.044715 * x * x * x)));
}

struct PlainBlock {
  PlainNorm norm1, norm2;
  Linear qkv, proj, up, down;
  int64_t heads;

  explicit PlainBlock(const PlainConfig& c)
      : norm1(c.n_embd),
        norm2(c.n_embd),
        qkv(c.n_embd, 3 * c.n_embd, true),
        proj(c.n_embd, c.n_embd, true, Role::residual_weight),
        up(c.n_embd, 4 * c.n_embd, true),
        down(4 * c.n_embd, c.n_embd, true, Role::residual_weight),
        heads(c.n_head) {}

  Variable attention(const Variable& x) const {
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const auto parts = lathe::split(qkv(x), {c, c, c}, -1);
    const auto by_head = [&](const Variable& y) {
      return transpose(reshape(y, {b, t, heads, c / heads}), 1, 2);
    };
    const Variable q = by_head(parts[0]), k = by_head(parts[1]), v = by_head(parts[2]);

    const double scale = 1 / std::sqrt(static_cast<double>(c / heads));
    const Variable scores = matmul(q, transpose(k, -2, -1)) * scale;
    const at::Tensor future = at::ones({t, t}, at::TensorOptions(at::kBool)).triu(1);
    const Variable weights = softmax(masked_fill(scores, future, -INFINITY), -1);
    return proj(reshape(transpose(matmul(weights, v), 1, 2), {b, t, c}));
  }
  Variable operator()(const Variable& x) const {
    const Variable h = x + attention(norm1(x));
    return h + down(plain_gelu(up(norm2(h))));
  }
  void visit(Visit& v) {
    v("norm1", norm1);
    v("qkv", qkv);
    v("proj", proj);
    v("norm2", norm2);
    v("up", up);
    v("down", down);
  }
};

struct PlainGPT {
  PlainConfig config;
  Embedding tokens, positions;
  std::vector<PlainBlock> blocks;
  PlainNorm norm;
  std::string init = "gpt2";

  explicit PlainGPT(const PlainConfig& c)
      : config(c),
        tokens(c.vocab_size, c.n_embd, Role::tied_embedding),
        positions(c.block_size, c.n_embd),
        norm(c.n_embd) {
    for (int64_t i = 0; i < c.n_layer; ++i) blocks.emplace_back(c);
  }
  Variable operator()(const at::Tensor& ids) const {
    const Variable x = tokens(ids) + slice(positions.weight, 0, 0, ids.size(1));
    return linear(norm(run_blocks(blocks, x)), tokens.weight);
  }
  void visit(Visit& v) {
    v("tokens", tokens);
    v("positions", positions);
    v.blocks("blocks", blocks);
    v("norm", norm);
  }
};

int main(int argc, char** argv) {
  add_model_kind(model_kind<PlainGPT, PlainConfig>("plain", "GPT-2 in plain ops"));
  return run_cli(argc, argv);
}
