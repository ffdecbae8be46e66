// Implements losses, which compute in float32 or wider for any dtype of the logits.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "autograd/node.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/product.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/kernels/loss.h"
#include "core/kernels/scratch.h"
#include "core/sum.h"

namespace lathe {
namespace {

/// Returns the factor of a loss: 1 / `divisor` or, if `divisor` is 0, 1 / the number of true
/// elements of the mask `counted`. Returns 0 if `divisor` is 0 and no element is true. The result
/// is a [] tensor on the device of `counted`, so that the host does not wait for a GPU.
at::Tensor scale_of(const at::Tensor& counted, double divisor, at::ScalarType dtype) {
  if (divisor > 0) return at::full({}, 1 / divisor, counted.options().dtype(dtype));
  const at::Tensor n = counted.sum().to(dtype);
  return n.clamp_min(1).reciprocal_().mul_(n.gt(0));
}

/// Returns x times `by` in `dtype`. `by` is a [] tensor in float32, so that the host does not wait
/// for a GPU.
at::Tensor scaled(const at::Tensor& x, const at::Tensor& by, at::ScalarType dtype) {
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(dtype));
  if (!gpu_kernel_ready(x) || !gpu_kernel_ready(y) || x.numel() % 4 != 0)
    return at::mul_out(y, x, by);
  const at::Tensor in = for_kernels(x);
  cuda_api().scale(in.const_data_ptr(), element_of(in.scalar_type()), by.const_data_ptr<float>(),
                   y.mutable_data_ptr(), element_of(dtype), in.numel());
  bump_version(y);
  return y;
}

// Shapes: N rows, V classes.
struct CrossEntropy {
  static constexpr OpInfo info{.name = "cross_entropy", .amp = Amp::fp32, .exact = true};
  Saved targets;
  double divisor;
  int64_t ignore_index;
  Saved log_p = Saved::input(0), index_N1{}, ignored_N1{},
        scale{};  // index_N1: the class of each row, 0 if the row is ignored

  // loss = -sum over counted rows of log softmax(logits)[target] / divisor
  at::Tensor forward(const at::Tensor& logits_NV) {
    const at::Tensor& targets_N = targets.data();
    LATHE_CHECK(
        logits_NV.dim() == 2 && targets_N.dim() == 1 && logits_NV.size(0) == targets_N.size(0),
        "needs logits [N, V] and targets [N], not targets ", describe(targets_N));
    const at::ScalarType wide = logits_NV.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    ignored_N1 = targets_N.eq(ignore_index).unsqueeze(1);
    index_N1 = targets_N.unsqueeze(1).masked_fill(ignored_N1.data(), 0);
    scale = scale_of(ignored_N1.data().logical_not(), divisor, wide);
    log_p = logits_NV.log_softmax(1, wide);
    // Masking gives 0 even if an ignored row has infinities or NaN; multiplying by 0 would not.
    const at::Tensor picked =
        log_p.data().gather(1, index_N1.data()).masked_fill_(ignored_N1.data(), 0);
    return fixed_sum(picked.mul_(scale.data())).neg_();
  }
  // dlogits = (softmax(logits) - onehot(target)) * dy / divisor, 0 in ignored rows
  Grads<1> backward(const at::Tensor& dy, Needs<1>) const {
    at::Tensor dx = log_p.data().exp();
    dx.scatter_add_(1, index_N1.data(), dx.new_full(index_N1.data().sizes(), -1.0));
    return {dx.mul_(scale.data() * dy).masked_fill_(ignored_N1.data(), 0)};
  }
  // Computes the same gradient with a graph, for second derivatives. The saved log softmax takes
  // the position of the logits in the graph. It differs from the logits by a constant in each row,
  // so the softmax of both has the same value and the same derivatives.
  Grads<1, Variable> backward(const Variable& dy, Needs<1>) const {
    const at::Tensor onehot = at::zeros_like(log_p.data()).scatter_(1, index_N1.data(), 1.0);
    const Variable p = softmax(masked_fill(log_p.as<Variable>(), ignored_N1.data(), 0), 1);
    return {masked_fill((p - onehot) * (dy * scale.data()), ignored_N1.data(), 0)};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&) { return flops_each(x, 5, 2); }
};

// The last linear layer of a model and its cross-entropy loss. Rows are processed in pieces.
struct LinearCrossEntropy {
  static constexpr OpInfo info{.name = "linear_cross_entropy", .amp = Amp::low, .exact = true};
  Saved targets_given;
  double divisor;
  int64_t ignore_index;
  at::ScalarType weight_grad;
  Needs<2> needs{};
  Saved dx_saved{}, dweight_saved{};  // gradients for dy = 1; on a GPU, without the factor `scale`
  Saved scale{};                      // defined on a GPU only
  Saved x_saved = Saved::input(0), w_saved = Saved::input(1);  // for second derivatives

  // The approximate limit on the bytes of logits that exist at the same time.
  static constexpr int64_t piece_bytes = int64_t{128} << 20, gpu_piece_bytes = int64_t{512} << 20;

  // logits = x W^T;  loss = -sum over counted rows of log softmax(logits)[target] / divisor
  // dlogits = (softmax(logits) - onehot(target)) / divisor;  dx = dlogits W, dW = dlogits^T x
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_) {
    const at::Tensor& targets_N = targets_given.data();
    LATHE_CHECK(x_.dim() == 2 && weight_.dim() == 2 && x_.size(1) == weight_.size(1) &&
                    targets_N.dim() == 1 && targets_N.size(0) == x_.size(0),
                "needs x [N, C], weight [V, C] and targets [N], not targets ", describe(targets_N));

    for (const at::Tensor& t : {weight_, targets_N})
      LATHE_CHECK(t.device() == x_.device(), "x is on ", x_.device().str(),
                  ", but another input is not");

    const at::Tensor x = x_.contiguous(), w = weight_.contiguous(),
                     targets = targets_N.to(at::kLong).contiguous();
    x_saved = x_;
    w_saved = weight_;

    if (x.is_cuda()) return on_gpu(x, w, targets);

    const int64_t n = x.size(0), c = x.size(1), v = w.size(0), stride = round_up(v, 32);
    // Check the targets here: the kernel uses them as indices.
    for (int64_t i = 0; i < n; ++i) {
      const int64_t t = targets.const_data_ptr<int64_t>()[i];
      LATHE_CHECK(t == ignore_index || (t >= 0 && t < v), "target ", t, " is neither in [0, ", v,
                  ") nor ignore_index = ", ignore_index);
    }

    // The loss scale is not known before backward, and in float16 the gradients of an unscaled loss
    // would underflow. Keep the gradients in float32.
    const bool half = x.scalar_type() == at::kHalf;
    const at::ScalarType logits_type = half ? at::kFloat : x.scalar_type();
    const at::ScalarType weight_type = half ? at::kFloat : weight_grad;
    const Element type = element_of(logits_type);

    const double by = divisor > 0 ? divisor : targets.ne(ignore_index).sum().item<double>();
    const auto scale = static_cast<float>(by > 0 ? 1 / by : 0.0);

    // Divide the rows into pieces of nearly equal length, a multiple of 64 rows. The logits of one
    // piece take at most about piece_bytes.
    const int64_t most = std::max<int64_t>(piece_bytes / (stride * bytes_of(type)), 64);
    const int64_t piece = round_up(divide_up(n, divide_up(n, most)), 64);

    const at::Tensor logits =
        at::empty({std::min(piece, n), stride}, x.options().dtype(logits_type));
    const at::Tensor losses = at::empty({n}, x.options().dtype(at::kFloat));

    at::Tensor dx, dweight;
    if (needs[0]) dx = at::empty(x.sizes(), x.options().dtype(logits_type));
    // Accumulate several pieces in float32.
    if (needs[1])
      dweight = at::empty(w.sizes(), w.options().dtype(piece < n ? at::kFloat : weight_type));

    for (int64_t row = 0; row < n; row += piece) {
      const int64_t rows = std::min(piece, n - row);
      const Matrix in = {matrix_of(x).at(row, 0), c, element_of(x.scalar_type())},
                   block = matrix_of(logits);
      gemm_nt(in, matrix_of(w), rows, v, c, {.out = block});
      // If a gradient is needed, the kernel overwrites the logits with their gradients, so that no
      // second buffer is needed.
      cross_entropy_rows(block, rows, v, stride - v, targets.const_data_ptr<int64_t>() + row,
                         ignore_index, scale, needs[0] || needs[1],
                         losses.mutable_data_ptr<float>() + row);
      if (needs[0]) {
        const Matrix out = matrix_of(dx);
        gemm(block, matrix_of(w), rows, c, v, {.out = {out.at(row, 0), c, type}});
      }
      if (needs[1]) {
        Epilogue e{.out = matrix_of(dweight)};
        if (row > 0) e.residual = e.out;
        gemm_tn(block, in, v, c, rows, e);
      }
    }

    if (needs[1] && dweight.scalar_type() != weight_type) dweight = dweight.to(weight_type);
    dx_saved = dx;
    dweight_saved = dweight;
    return (fixed_sum(losses.to(at::kDouble)) / (by > 0 ? by : 1.0)).to(at::kFloat);
  }
  /// Computes the loss on a GPU. The host does not wait for the number of counted targets: `scale`
  /// stays a tensor, by which forward multiplies the loss, and backward the gradients.
  at::Tensor on_gpu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& targets) {
    const int64_t n = x.size(0), v = w.size(0), stride = round_up(v, 32);
    scale = scale_of(targets.ne(ignore_index), divisor, at::kFloat);

    // The kernel takes the factor of the loss as a number, which the host does not know, so pass 1.
    // The kernel then computes the gradients of the undivided sum.
    const int64_t most = std::max<int64_t>(gpu_piece_bytes / (stride * x.element_size()), 64);
    const int64_t piece = round_up(divide_up(n, divide_up(n, most)), 64);

    const at::Tensor logits = at::empty({std::min(piece, n), stride}, x.options());
    const at::Tensor losses = at::empty({n}, x.options().dtype(at::kFloat));

    at::Tensor dx, dweight;
    if (needs[0]) dx = at::empty_like(x);
    for (int64_t row = 0; row < n; row += piece) {
      const int64_t rows = std::min(piece, n - row);
      const at::Tensor in = x.narrow(0, row, rows);
      at::Tensor block = logits.narrow(0, 0, rows).narrow(1, 0, v);
      at::mm_out(block, in, w.t());

      cuda_api().cross_entropy_rows({logits.const_data_ptr(), stride, element_of(x.scalar_type())},
                                    rows, v, targets.const_data_ptr<int64_t>() + row, ignore_index,
                                    1.0f, needs[0] || needs[1],
                                    losses.mutable_data_ptr<float>() + row);

      if (needs[0]) {
        at::Tensor out = dx.narrow(0, row, rows);
        at::mm_out(out, block, w);
      }

      // Use float32 if several pieces are accumulated, and for float16, in which sums over rows
      // could overflow.
      const bool wide =
          x.scalar_type() == at::kFloat || (x.scalar_type() == at::kBFloat16 && piece >= n);
      if (needs[1] && row == 0)
        dweight = wide ? at::mm(block.t(), in) : at::mm(block.t(), in, at::kFloat);
      else if (needs[1])
        wide ? at::addmm_out(dweight, dweight, block.t(), in)
             : at::addmm_out(dweight, dweight, block.t(), in, at::kFloat);
    }

    dx_saved = dx;
    dweight_saved = dweight;
    return losses.sum().mul_(scale.data());
  }
  Grads<2> backward(const at::Tensor& dy, Needs<2>) const {
    const at::Tensor dx = dx_saved.data(), dweight = dweight_saved.data();
    if (scale.data().defined()) {
      const at::Tensor by = (dy * scale.data()).to(at::kFloat);
      return {dx.defined() ? scaled(dx, by, dx.scalar_type()) : dx,
              dweight.defined() ? scaled(dweight, by, weight_grad) : dweight};
    }
    const double factor = dy.item<double>();
    if (factor == 1) return {dx, dweight};
    return {dx.defined() ? dx * factor : dx, dweight.defined() ? dweight * factor : dweight};
  }
  Grads<2, Variable> backward(const Variable& dy, Needs<2> needs) const {
    return plain_gradients<2>(
        {x_saved.as<Variable>(), w_saved.as<Variable>()}, needs, {dy},
        [this](const std::vector<Variable>& in) {
          const Variable logits = wide_of(linear(in[0], in[1]));
          return std::vector{cross_entropy(logits, targets_given.data(), divisor, ignore_index)};
        });
  }
  /// Counts the FLOPs of the gradients as part of forward, which computes the gradients.
  OpFlops flops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor&) const {
    const double logits = static_cast<double>(x.size(0)) * static_cast<double>(weight.size(0));
    const double product = 2 * logits * static_cast<double>(x.size(1));
    const int gradients = (needs[0] ? 1 : 0) + (needs[1] ? 1 : 0);
    return {.forward = {(1 + gradients) * product, (gradients > 0 ? 7 : 5) * logits},
            .backward = {}};
  }
};

}  // namespace

Variable linear_cross_entropy(const Variable& x_NC, const Variable& weight_VC,
                              const at::Tensor& targets_N, double divisor, int64_t ignore_index) {
  require_defined("linear_cross_entropy", {&x_NC, &weight_VC});
  if (!can_fuse_linear_cpu(x_NC, weight_VC) && !can_fuse_linear_gpu(x_NC, weight_VC))
    return cross_entropy(linear(x_NC, weight_VC), targets_N, divisor, ignore_index);
  return apply(LinearCrossEntropy{.targets_given = targets_N,
                                  .divisor = divisor,
                                  .ignore_index = ignore_index,
                                  .weight_grad = kernel_grad_dtype(weight_VC)},
               x_NC, weight_VC);
}

Variable cross_entropy(const Variable& logits_NV, const at::Tensor& targets_N, double divisor,
                       int64_t ignore_index) {
  require_defined("cross_entropy", {&logits_NV});
  return apply(CrossEntropy{.targets = targets_N, .divisor = divisor, .ignore_index = ignore_index},
               logits_NV);
}

Variable mse_loss(const Variable& a, const Variable& b) { return mse_loss(a, b, Reduction::mean); }

}  // namespace lathe
