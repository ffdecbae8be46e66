// `lathe bench ops`: times each op beside the same work in ATen's kernels, as PyTorch's autograd
// would call them.
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
  std::string name;
  double flops = 0;  ///< of its matrix products, forward and backward
  std::function<void()> ours, aten;
};

double seconds_of(const std::function<void()>& f, int repeats) {
  const auto begin = Clock::now();
  for (int i = 0; i < repeats; ++i) f();
  return seconds_since(begin) / repeats;
}

/// Returns a function that runs an op forward and backward; it drops the gradients of the
/// parameters first.
std::function<void()> pass(std::vector<Variable> parameters, at::Tensor dy,
                           std::function<Variable()> op) {
  return [parameters = std::move(parameters), dy = std::move(dy), op = std::move(op)] {
    for (const auto& p : parameters) p.leaf().grad.reset();
    backward(op(), dy);
  };
}

/// Returns the ops. Shapes: N = batch x context rows, C channels, V tokens; `dtype` is that of
/// matrix products.
std::vector<OpBench> make_ops(const OpSizes& s, at::ScalarType dtype) {
  const int64_t n = s.batch * s.context, c = s.width, v = s.vocab, heads = c / 64;
  const auto low = at::TensorOptions(dtype), wide = at::TensorOptions(at::kFloat);
  const auto parameter = [](const at::Tensor& t) { return Variable::parameter(t); };

  // 2 FLOPs for each multiply-add, in one matrix product forward and two backward.
  const auto product = [](int64_t a, int64_t b, int64_t k) {
    return 6.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(k);
  };

  std::vector<OpBench> ops;

  {
    const at::Tensor x = at::randn({n, c}, low), w = at::randn({3 * c, c}, low),
                     b = at::randn({3 * c}, low), dy = at::randn({n, 3 * c}, low);
    const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
    ops.push_back({"linear", product(n, 3 * c, c),
                   pass({px, pw, pb}, dy, [=] { return linear(px, pw, pb); }), [=] {
                     const at::Tensor y = at::addmm(b, x, w.t());
                     const at::Tensor dx = at::mm(dy, w), dw = at::mm(dy.t(), x), db = dy.sum(0);
                   }});
  }

  {
    const at::Tensor x = at::randn({n, c}, low), w = at::randn({4 * c, c}, low),
                     b = at::randn({4 * c}, low), dy = at::randn({n, 4 * c}, low);
    const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
    ops.push_back({"linear_gelu", product(n, 4 * c, c),
                   pass({px, pw, pb}, dy, [=] { return linear_gelu(px, pw, pb); }), [=] {
                     const at::Tensor u = at::addmm(b, x, w.t()), y = at::gelu(u, "tanh"),
                                      du = at::gelu_backward(dy, u, "tanh");
                     const at::Tensor dx = at::mm(du, w), dw = at::mm(du.t(), x), db = du.sum(0);
                   }});
  }

  // The residual stream is float32, so the gradient arrives in float32 and ATen has to cast it.
  {
    const at::Tensor x = at::randn({n, 4 * c}, low), w = at::randn({c, 4 * c}, low),
                     b = at::randn({c}, low), r = at::randn({n, c}, wide),
                     dy = at::randn({n, c}, wide);
    const Variable px = parameter(x), pw = parameter(w), pb = parameter(b), pr = parameter(r);
    ops.push_back({"linear + residual", product(n, 4 * c, c),
                   pass({px, pw, pb, pr}, dy, [=] { return linear(px, pw, pb, pr); }), [=] {
                     const at::Tensor y = r + at::addmm(b, x, w.t()), d = dy.to(dtype);
                     const at::Tensor dx = at::mm(d, w), dw = at::mm(d.t(), x), db = d.sum(0);
                   }});
  }

  // Lathe's norms read float32 and write the dtype of matrix products; ATen needs a cast for that.
  {
    const at::Tensor x = at::randn({n, c}, wide), w = at::randn({c}, wide),
                     b = at::randn({c}, wide), dy = at::randn({n, c}, low),
                     d_residual = at::randn({n, c}, wide);
    const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
    ops.push_back({"layer_norm", 0,
                   pass({px, pw, pb}, dy, [=] { return layer_norm(px, pw, pb, 1e-5, dtype); }),
                   [=] {
                     auto [y, m, r] = at::native_layer_norm(x, c, w, b, 1e-5);
                     const at::Tensor out = y.to(dtype);
                     const auto grads = at::native_layer_norm_backward(dy.to(at::kFloat), x, c, m,
                                                                       r, w, b, {true, true, true});
                   }});
    ops.push_back(
        {"rms_norm", 0, pass({px, pw}, dy, [=] { return rms_norm(px, pw, 1e-5, dtype); }), [=] {
           const at::Tensor r = (x * x).mean(-1, true).add_(1e-5).rsqrt_(), h = x * r;
           const at::Tensor y = (h * w).to(dtype), up = dy.to(at::kFloat), g = up * w;
           const at::Tensor dx = r * (g - h * (g * h).mean(-1, true)), dw = (up * h).sum(0);
         }});
  }

  // x holds the gate and the value side by side, 2 C channels each.
  {
    const at::Tensor x = at::randn({n, 4 * c}, low), dy = at::randn({n, 2 * c}, low);
    const Variable px = parameter(x);
    ops.push_back({"swiglu", 0, pass({px}, dy, [=] { return swiglu(px); }), [=] {
                     const auto parts = x.chunk(2, 1);
                     const at::Tensor s = at::silu(parts[0]), y = s * parts[1];
                     const at::Tensor dx =
                         at::cat({at::silu_backward(dy * parts[1], parts[0]), dy * s}, 1);
                   }});
  }

  // Two matrix products forward and four backward, of which causality needs half.
  {
    const at::Tensor qkv = at::randn({s.batch, s.context, 3 * c}, low),
                     dy = at::randn({s.batch, s.context, c}, low);
    const Variable p = parameter(qkv);
    const double square = static_cast<double>(n * s.context) * static_cast<double>(c);
    ops.push_back(
        {"attention (half the square)", 6 * square,
         pass({p}, dy, [=] { return attention(p, heads); }), [=] {
           const auto part = [&](int64_t i) {
             return qkv.view({s.batch, s.context, 3, heads, 64}).select(2, i).transpose(1, 2);
           };
           auto [y, lse] =
               at::_scaled_dot_product_flash_attention_for_cpu(part(0), part(1), part(2), 0, true);
           const at::Tensor joined = y.transpose(1, 2).reshape({s.batch, s.context, c});
           auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
               dy.view({s.batch, s.context, heads, 64}).transpose(1, 2), part(0), part(1), part(2),
               y, lse, 0, true);
           const at::Tensor d = at::cat({dq, dk, dv}, 1);
         }});
  }

  {
    // The loss is a scalar, so backward starts without a gradient.
    const at::Tensor x = at::randn({n, c}, low), w = at::randn({v, c}, low) * 0.02,
                     targets = at::randint(v, {n}, at::kLong);
    const Variable px = parameter(x), pw = parameter(w);
    ops.push_back({"linear_cross_entropy", product(n, v, c),
                   pass({px, pw}, {}, [=] { return linear_cross_entropy(px, pw, targets); }), [=] {
                     const at::Tensor log_p = at::log_softmax(at::mm(x, w.t()).to(at::kFloat), 1);
                     auto [loss, total] =
                         at::nll_loss_forward(log_p, targets, {}, at::Reduction::Mean, -100);
                     const at::Tensor g = at::nll_loss_backward(
                         at::ones({}, wide), log_p, targets, {}, at::Reduction::Mean, -100, total);
                     const at::Tensor d =
                         at::_log_softmax_backward_data(g, log_p, 1, at::kFloat).to(dtype);
                     const at::Tensor dx = at::mm(d, w), dw = at::mm(d.t(), x);
                   }});
  }

  {
    const at::Tensor w = at::randn({v, c}, wide), ids = at::randint(v, {n}, at::kLong),
                     dy = at::randn({n, c}, wide);
    const Variable p = parameter(w);
    ops.push_back({"embedding", 0, pass({p}, dy, [=] { return embedding(ids, p); }), [=] {
                     const at::Tensor y = at::embedding(w, ids),
                                      d = at::embedding_dense_backward(dy, ids, v, -1, false);
                   }});
  }

  {
    const at::Tensor x = at::randn({n, c}, low), dy = at::randn({n, c}, low);
    const Variable p = parameter(x);
    ops.push_back({"dropout", 0,
                   [=, run = pass({p}, dy, [=] { return dropout(p, 0.1, 1); })] {
                     // Dropout is active only inside a training step.
                     const TrainingStep step({.seed = 1, .step = 1, .first_sample = 0});
                     run();
                   },
                   [=] {
                     const at::Tensor mask = (at::rand({n, c}, wide) >= 0.1).to(dtype).div_(0.9),
                                      y = x * mask, dx = dy * mask;
                   }});
  }

  // Six elementwise ops on 16 MB, as one op of fused(), deferred as in training, and one by one.
  {
    const at::Tensor x = at::randn({2048, 2048}, wide), w = at::randn({2048}, wide),
                     b = at::randn({2048}, wide), dy = at::randn({2048, 2048}, wide);
    const Variable px = parameter(x), pw = parameter(w), pb = parameter(b);
    const auto chain = [](const Variable& v, const Variable& scale, const Variable& shift) {
      const Variable h = v * scale + shift;
      return h * sigmoid(h * 1.702) + v;
    };
    const auto aten = [=] {
      const at::Tensor h = at::add(at::mul(x, w), b), s = at::sigmoid(at::mul(h, 1.702)),
                       y = at::add(at::mul(h, s), x);
      at::Tensor dh = at::mul(dy, s);
      dh.add_(at::mul(at::sigmoid_backward(at::mul(dy, h), s), 1.702));
      const at::Tensor dx = at::add(dy, at::mul(dh, w)), dw = at::mul(dh, x).sum(0), db = dh.sum(0);
    };
    ops.push_back({"six ops of 16 MB, fused", 0,
                   pass({px, pw, pb}, dy, [=] { return fused(chain, px, pw, pb); }), aten});
    ops.push_back(
        {"six ops of 16 MB, deferred", 0,
         pass({px, pw, pb}, dy, [=] { return deferred([&] { return chain(px, pw, pb); }); }),
         aten});
    ops.push_back({"six ops of 16 MB, one by one", 0,
                   pass({px, pw, pb}, dy, [=] { return chain(px, pw, pb); }), aten});
    ops.push_back({"six ops of 16 MB, forward", 0,
                   [=] {
                     const NoGrad no_grad;
                     const Variable y = fused(chain, px, pw, pb);
                   },
                   [=] {
                     const at::Tensor h = at::add(at::mul(x, w), b),
                                      y = at::add(at::mul(h, at::sigmoid(at::mul(h, 1.702))), x);
                   }});
  }

  // As many elements as the matrices of a transformer block: 12 C^2.
  {
    OptimConfig config;
    config.grad_clip = 1;
    const at::Tensor p = at::randn({12 * c, c}, wide), g = at::randn({12 * c, c}, wide);
    const Variable parameter_ = parameter(p);
    parameter_.leaf().grad = g;
    const auto optimizer = std::make_shared<Optimizer>(
        config, std::vector<NamedParameter>{{"p", parameter_, Role::weight}});
    const at::Tensor q = p.clone(), m = at::zeros_like(q), u = at::zeros_like(q),
                     step = at::ones({}, wide);
    ops.push_back({"adamw with clipping", 0, [=] { optimizer->step(1e-4, {}); },
                   [=] {
                     const at::Tensor norm = g.norm();
                     const at::Tensor clipped = g * (1.0 / std::max(1.0, norm.item<double>()));
                     at::_fused_adamw_({q}, {clipped}, {m}, {u}, {}, {step}, 1e-4, 0.9, 0.999, 0.1,
                                       1e-8, false, false);
                   }});
  }

  // The arithmetic of 16 elements is negligible, so this is the cost of an op and its node.
  {
    const at::Tensor x = at::randn({16}, wide), y = at::randn({16}, wide);
    const Variable px = parameter(x), py = parameter(y);
    ops.push_back({"add of 16, forward with its node", 0, [=] { const Variable z = add(px, py); },
                   [=] { const at::Tensor z = at::add(x, y); }});
  }

  return ops;
}

}  // namespace

std::string time_ops(const OpSizes& sizes, int threads, const std::string& dtype_text) {
  const at::ScalarType dtype = dtype_from_config(dtype_text);
  // Without PyTorch's autograd, which would count against ATen.
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

  for (const auto& op : make_ops(sizes, dtype)) {
    if (op.name.find(sizes.only) == std::string::npos) continue;
    // Warm up.
    op.ours();
    op.aten();

    // A round takes about 20 ms and all rounds about a second, so slow and fast ops are measured
    // alike.
    const double once = std::max(seconds_of(op.ours, 1), seconds_of(op.aten, 1));
    const int repeats = std::clamp(static_cast<int>(0.02 / once), 1, 20000);
    const int rounds = std::clamp(static_cast<int>(1.0 / (once * repeats)), 5, 25);

    std::vector<double> ours, aten;
    // Alternate, so that a disturbance meets both sides.
    for (int i = 0; i < rounds; ++i) {
      ours.push_back(seconds_of(op.ours, repeats));
      aten.push_back(seconds_of(op.aten, repeats));
    }

    const double t = median(ours), u = median(aten), rate = op.flops / t;
    const std::string of_peak =
        peak && op.flops > 0 ? format("%.0f%%", 100 * rate / peak->rate) : "";
    std::cout << format("%-28s %10.4f %10.4f %6.2f %8s %8s\n", op.name.c_str(), 1e3 * t, 1e3 * u,
                        t / u, op.flops > 0 ? format("%.3f", rate / 1e12).c_str() : "",
                        of_peak.c_str())
              << std::flush;

    Json line{{"op", op.name}, {"lathe_ms", 1e3 * t}, {"aten_ms", 1e3 * u}};
    if (op.flops > 0) line["tflops"] = rate / 1e12;
    out.push_back(line);
  }

  if (out.empty()) fail(Exit::usage, "command line: no op has \"", sizes.only, "\" in its name");
  return json_text(Json{{"dtype", dtype_text}, {"threads", threads}, {"ops", out}});
}

}  // namespace lathe
