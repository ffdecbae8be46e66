// Implements `lathe bench ops`: measures the time of each op and, for comparison, of the same work
// in ATen's kernels, called as PyTorch's autograd would call them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>

#include "autograd/deferred.h"
#include "autograd/engine.h"
#include "autograd/fused.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/io/json.h"
#include "core/io/text.h"
#include "core/mode.h"
#include "core/timing.h"
#include "optim/optimizer.h"
#include "train/commands/bench.h"
#include "train/session/peak.h"

namespace lathe {
namespace {

struct OpBench {
  double flops = 0;  ///< FLOPs of the op's matrix products, forward and backward
  std::function<void()> ours, aten;
};

double seconds_of(const std::function<void()>& f, int repeats) {
  const auto begin = Clock::now();
  for (int i = 0; i < repeats; ++i) f();
  return seconds_since(begin) / repeats;
}

/// Returns a function that resets the gradients of the parameters, and then runs an op forward and
/// backward.
std::function<void()> pass(std::vector<Variable> parameters, at::Tensor dy,
                           std::function<Variable()> op) {
  return [parameters = std::move(parameters), dy = std::move(dy), op = std::move(op)] {
    for (const auto& p : parameters) p.leaf().grad.reset();
    backward(op(), dy);
  };
}

/// Shapes of the ops. n = batch x context is the number of rows, c the number of channels, v the
/// size of the vocabulary. A head has 64 channels.
struct OpShapes {
  int64_t batch, context, n, c, v, heads;
  at::ScalarType dtype;  ///< dtype of matrix products
  /// Options of tensors in `dtype`, and in float32.
  at::TensorOptions low{dtype}, wide{at::kFloat};
};

/// Returns the FLOPs of a matrix product in the forward pass and of its two products in the
/// backward pass. A multiply-add counts as 2.
double product(int64_t a, int64_t b, int64_t k) {
  return 6.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(k);
}

Variable parameter(const at::Tensor& t) { return Variable::parameter(t); }

OpBench bench_linear(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, s.c}, s.low), w = at::randn({3 * s.c, s.c}, s.low),
                   b = at::randn({3 * s.c}, s.low), dy = at::randn({s.n, 3 * s.c}, s.low);
  const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
  return {product(s.n, 3 * s.c, s.c), pass({px, pw, pb}, dy, [=] { return linear(px, pw, pb); }),
          [=] {
            const at::Tensor y = at::addmm(b, x, w.t());
            const at::Tensor dx = at::mm(dy, w), dw = at::mm(dy.t(), x), db = dy.sum(0);
          }};
}

OpBench bench_linear_gelu(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, s.c}, s.low), w = at::randn({4 * s.c, s.c}, s.low),
                   b = at::randn({4 * s.c}, s.low), dy = at::randn({s.n, 4 * s.c}, s.low);
  const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
  return {product(s.n, 4 * s.c, s.c),
          pass({px, pw, pb}, dy, [=] { return linear_gelu(px, pw, pb); }), [=] {
            const at::Tensor u = at::addmm(b, x, w.t()), y = at::gelu(u, "tanh"),
                             du = at::gelu_backward(dy, u, "tanh");
            const at::Tensor dx = at::mm(du, w), dw = at::mm(du.t(), x), db = du.sum(0);
          }};
}

/// The residual stream is float32, so the gradient arrives in float32 and ATen has to cast it.
OpBench bench_linear_residual(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, 4 * s.c}, s.low), w = at::randn({s.c, 4 * s.c}, s.low),
                   b = at::randn({s.c}, s.low), r = at::randn({s.n, s.c}, s.wide),
                   dy = at::randn({s.n, s.c}, s.wide);
  const Variable px = parameter(x), pw = parameter(w), pb = parameter(b), pr = parameter(r);
  return {product(s.n, 4 * s.c, s.c),
          pass({px, pw, pb, pr}, dy, [=] { return linear(px, pw, pb, pr); }), [=, dtype = s.dtype] {
            const at::Tensor y = r + at::addmm(b, x, w.t()), d = dy.to(dtype);
            const at::Tensor dx = at::mm(d, w), dw = at::mm(d.t(), x), db = d.sum(0);
          }};
}

/// Lathe's norms read float32 and write the dtype of matrix products; ATen's norms need a separate
/// cast.
OpBench bench_layer_norm(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, s.c}, s.wide), w = at::randn({s.c}, s.wide),
                   b = at::randn({s.c}, s.wide), dy = at::randn({s.n, s.c}, s.low);
  const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
  return {
      0,
      pass({px, pw, pb}, dy, [=, dtype = s.dtype] { return layer_norm(px, pw, pb, 1e-5, dtype); }),
      [=, dtype = s.dtype, c = s.c] {
        auto [y, m, r] = at::native_layer_norm(x, c, w, b, 1e-5);
        const at::Tensor out = y.to(dtype);
        const auto grads =
            at::native_layer_norm_backward(dy.to(at::kFloat), x, c, m, r, w, b, {true, true, true});
      }};
}

OpBench bench_rms_norm(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, s.c}, s.wide), w = at::randn({s.c}, s.wide),
                   dy = at::randn({s.n, s.c}, s.low);
  const Variable px = parameter(x), pw = parameter(w);
  return {0, pass({px, pw}, dy, [=, dtype = s.dtype] { return rms_norm(px, pw, 1e-5, dtype); }),
          [=, dtype = s.dtype] {
            const at::Tensor r = (x * x).mean(-1, true).add_(1e-5).rsqrt_(), h = x * r;
            const at::Tensor y = (h * w).to(dtype), up = dy.to(at::kFloat), g = up * w;
            const at::Tensor dx = r * (g - h * (g * h).mean(-1, true)), dw = (up * h).sum(0);
          }};
}

/// Each row of x holds 2 C channels of the gate, followed by 2 C channels of the value.
OpBench bench_swiglu(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, 4 * s.c}, s.low), dy = at::randn({s.n, 2 * s.c}, s.low);
  const Variable px = parameter(x);
  return {0, pass({px}, dy, [=] { return swiglu(px); }), [=] {
            const auto parts = x.chunk(2, 1);
            const at::Tensor gate = at::silu(parts[0]), y = gate * parts[1];
            const at::Tensor dx =
                at::cat({at::silu_backward(dy * parts[1], parts[0]), dy * gate}, 1);
          }};
}

/// Counts two matrix products in the forward pass and four in the backward pass. Causal attention
/// needs half of each product.
OpBench bench_attention(const OpShapes& s) {
  const at::Tensor qkv = at::randn({s.batch, s.context, 3 * s.c}, s.low),
                   dy = at::randn({s.batch, s.context, s.c}, s.low);
  const Variable p = parameter(qkv);
  const double square = static_cast<double>(s.n * s.context) * static_cast<double>(s.c);
  return {6 * square, pass({p}, dy, [p, heads = s.heads] { return attention(p, heads); }), [=] {
            const auto part = [&](int64_t i) {
              return qkv.view({s.batch, s.context, 3, s.heads, 64}).select(2, i).transpose(1, 2);
            };
            auto [y, lse] =
                at::_scaled_dot_product_flash_attention_for_cpu(part(0), part(1), part(2), 0, true);
            const at::Tensor joined = y.transpose(1, 2).reshape({s.batch, s.context, s.c});
            auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
                dy.view({s.batch, s.context, s.heads, 64}).transpose(1, 2), part(0), part(1),
                part(2), y, lse, 0, true);
            const at::Tensor d = at::cat({dq, dk, dv}, 1);
          }};
}

OpBench bench_linear_cross_entropy(const OpShapes& s) {
  // The loss is a scalar, so backward starts without a gradient.
  const at::Tensor x = at::randn({s.n, s.c}, s.low), w = at::randn({s.v, s.c}, s.low) * 0.02,
                   targets = at::randint(s.v, {s.n}, at::kLong);
  const Variable px = parameter(x), pw = parameter(w);
  return {
      product(s.n, s.v, s.c),
      pass({px, pw}, {}, [=] { return linear_cross_entropy(px, pw, targets); }), [=] {
        const at::Tensor log_p = at::log_softmax(at::mm(x, w.t()).to(at::kFloat), 1);
        auto [loss, total] = at::nll_loss_forward(log_p, targets, {}, at::Reduction::Mean, -100);
        const at::Tensor g = at::nll_loss_backward(at::ones({}, s.wide), log_p, targets, {},
                                                   at::Reduction::Mean, -100, total);
        const at::Tensor d = at::_log_softmax_backward_data(g, log_p, 1, at::kFloat).to(s.dtype);
        const at::Tensor dx = at::mm(d, w), dw = at::mm(d.t(), x);
      }};
}

OpBench bench_embedding(const OpShapes& s) {
  const at::Tensor w = at::randn({s.v, s.c}, s.wide), ids = at::randint(s.v, {s.n}, at::kLong),
                   dy = at::randn({s.n, s.c}, s.wide);
  const Variable p = parameter(w);
  return {0, pass({p}, dy, [=] { return embedding(ids, p); }), [=, v = s.v] {
            const at::Tensor y = at::embedding(w, ids),
                             d = at::embedding_dense_backward(dy, ids, v, -1, false);
          }};
}

OpBench bench_dropout(const OpShapes& s) {
  const at::Tensor x = at::randn({s.n, s.c}, s.low), dy = at::randn({s.n, s.c}, s.low);
  const Variable p = parameter(x);
  return {0,
          [run = pass({p}, dy, [=] { return dropout(p, 0.1, 1); })] {
            // Dropout is active only inside a training step.
            const TrainingStep step({.seed = 1, .step = 1, .first_sample = 0});
            run();
          },
          [=] {
            const at::Tensor mask = (at::rand({s.n, s.c}, s.wide) >= 0.1).to(s.dtype).div_(0.9),
                             y = x * mask, dx = dy * mask;
          }};
}

/// Six elementwise ops on 16 MB.
struct SixOps {
  at::Tensor x = at::randn({2048, 2048}), w = at::randn({2048}), b = at::randn({2048}),
             dy = at::randn({2048, 2048});
  Variable px = parameter(x), pw = parameter(w), pb = parameter(b);

  static Variable chain(const Variable& v, const Variable& scale, const Variable& shift) {
    const Variable h = v * scale + shift;
    return h * sigmoid(h * 1.702) + v;
  }
  /// Returns a benchmark that compares ATen's ops with `ours`, one of the ways in which Lathe can
  /// run chain().
  OpBench by(std::function<Variable()> ours) const {
    return {0, pass({px, pw, pb}, dy, std::move(ours)), [six = *this] {
              const auto& [x, w, b, dy, px, pw, pb] = six;
              const at::Tensor h = at::add(at::mul(x, w), b), s = at::sigmoid(at::mul(h, 1.702)),
                               y = at::add(at::mul(h, s), x);
              at::Tensor dh = at::mul(dy, s);
              dh.add_(at::mul(at::sigmoid_backward(at::mul(dy, h), s), 1.702));
              const at::Tensor dx = at::add(dy, at::mul(dh, w)), dw = at::mul(dh, x).sum(0),
                               db = dh.sum(0);
            }};
  }
};

OpBench bench_fused(const OpShapes&) {
  const SixOps s;
  return s.by([=] { return fused(SixOps::chain, s.px, s.pw, s.pb); });
}

/// Runs chain() in the way in which a training step runs elementwise ops with train.fuse.
OpBench bench_deferred(const OpShapes&) {
  const SixOps s;
  return s.by([=] { return deferred([&] { return SixOps::chain(s.px, s.pw, s.pb); }); });
}

OpBench bench_one_by_one(const OpShapes&) {
  const SixOps s;
  return s.by([=] { return SixOps::chain(s.px, s.pw, s.pb); });
}

OpBench bench_fused_forward(const OpShapes&) {
  const SixOps s;
  return {0,
          [=] {
            const NoGrad no_grad;
            const Variable y = fused(SixOps::chain, s.px, s.pw, s.pb);
          },
          [=] {
            const at::Tensor h = at::add(at::mul(s.x, s.w), s.b),
                             y = at::add(at::mul(h, at::sigmoid(at::mul(h, 1.702))), s.x);
          }};
}

/// Updates 12 C^2 elements, as many as the matrices of a transformer block have.
OpBench bench_adamw(const OpShapes& s) {
  OptimConfig config;
  config.grad_clip = 1;
  const at::Tensor p = at::randn({12 * s.c, s.c}, s.wide), g = at::randn({12 * s.c, s.c}, s.wide);
  const Variable v = parameter(p);
  v.leaf().grad = g;
  const auto optimizer =
      std::make_shared<Optimizer>(config, std::vector<NamedParameter>{{"p", v, Role::weight}});
  const at::Tensor q = p.clone(), m = at::zeros_like(q), u = at::zeros_like(q),
                   step = at::ones({}, s.wide);
  return {0, [=] { optimizer->step(1e-4, {}); },
          [=] {
            const at::Tensor norm = g.norm();
            const at::Tensor clipped = g * (1.0 / std::max(1.0, norm.item<double>()));
            at::_fused_adamw_({q}, {clipped}, {m}, {u}, {}, {step}, 1e-4, 0.9, 0.999, 0.1, 1e-8,
                              false, false);
          }};
}

/// Measures the overhead of an op and its node. The arithmetic on 16 elements takes negligible
/// time.
OpBench bench_small_add(const OpShapes& s) {
  const at::Tensor x = at::randn({16}, s.wide), y = at::randn({16}, s.wide);
  const Variable px = parameter(x), py = parameter(y);
  return {0, [=] { const Variable z = add(px, py); }, [=] { const at::Tensor z = at::add(x, y); }};
}

/// The name of an op in the output, and the function that makes its benchmark.
struct OpRow {
  const char* name;
  OpBench (*make)(const OpShapes&);
};
constexpr OpRow op_rows[]{{"linear", bench_linear},
                          {"linear_gelu", bench_linear_gelu},
                          {"linear + residual", bench_linear_residual},
                          {"layer_norm", bench_layer_norm},
                          {"rms_norm", bench_rms_norm},
                          {"swiglu", bench_swiglu},
                          {"attention (half the square)", bench_attention},
                          {"linear_cross_entropy", bench_linear_cross_entropy},
                          {"embedding", bench_embedding},
                          {"dropout", bench_dropout},
                          {"six ops of 16 MB, fused", bench_fused},
                          {"six ops of 16 MB, deferred", bench_deferred},
                          {"six ops of 16 MB, one by one", bench_one_by_one},
                          {"six ops of 16 MB, forward", bench_fused_forward},
                          {"adamw with clipping", bench_adamw},
                          {"add of 16, forward with its node", bench_small_add}};

}  // namespace

std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype_text) {
  const at::ScalarType dtype = dtype_from_config(dtype_text);
  // Call ATen without PyTorch's autograd, whose overhead would make ATen look slower.
  const at::AutoDispatchBelowAutograd plain;
  const auto peak = known_peak("cpu", threads, dtype);

  Json out = Json::array();
  std::cout << kernels_text()
            << format("%s, %d threads, batch %lld, context %lld, width %lld, vocabulary %lld\n\n",
                      dtype_text.c_str(), threads, static_cast<long long>(sizes.batch),
                      static_cast<long long>(sizes.context), static_cast<long long>(sizes.width),
                      static_cast<long long>(sizes.vocab))
            << format("%-28s %10s %10s %6s %8s %8s\n", "forward and backward", "lathe ms",
                      "aten ms", "ratio", "TFLOP/s", "of peak");

  const OpShapes shapes{.batch = sizes.batch,
                        .context = sizes.context,
                        .n = sizes.batch * sizes.context,
                        .c = sizes.width,
                        .v = sizes.vocab,
                        .heads = sizes.width / 64,
                        .dtype = dtype};
  for (const auto& [name, make] : op_rows) {
    if (std::string_view(name).find(sizes.only) == std::string_view::npos) continue;
    const OpBench op = make(shapes);
    // Warm up.
    op.ours();
    op.aten();

    // A round takes about 20 ms, and all rounds together about a second, so fast and slow ops are
    // measured with the same precision.
    const double once = std::max(seconds_of(op.ours, 1), seconds_of(op.aten, 1));
    const int repeats = std::clamp(static_cast<int>(0.02 / once), 1, 20000);
    const int rounds = std::clamp(static_cast<int>(1.0 / (once * repeats)), 5, 25);

    std::vector<double> ours, aten;
    // Alternate between Lathe and ATen, so that a disturbance affects both.
    for (int i = 0; i < rounds; ++i) {
      ours.push_back(seconds_of(op.ours, repeats));
      aten.push_back(seconds_of(op.aten, repeats));
    }

    const double t = median(ours), u = median(aten), rate = op.flops / t;
    const std::string of_peak =
        peak && op.flops > 0 ? format("%.0f%%", 100 * rate / peak->rate) : "";
    std::cout << format("%-28s %10.4f %10.4f %6.2f %8s %8s\n", name, 1e3 * t, 1e3 * u, t / u,
                        op.flops > 0 ? format("%.3f", rate / 1e12).c_str() : "", of_peak.c_str())
              << std::flush;

    Json line{{"op", name}, {"lathe_ms", 1e3 * t}, {"aten_ms", 1e3 * u}};
    if (op.flops > 0) line["tflops"] = rate / 1e12;
    out.push_back(line);
  }

  if (out.empty()) fail(Exit::usage, "command line: no op has \"", sizes.only, "\" in its name");
  return json_text(Json{{"dtype", dtype_text}, {"threads", threads}, {"ops", out}});
}

}  // namespace lathe
