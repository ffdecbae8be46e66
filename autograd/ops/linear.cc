// Linear layers, which take most of the FLOPs. On CPUs in float32 and bfloat16 a layer is one pass
// of a blocked matrix product (core/kernels/gemm.h); bias, activation, residual and rounding are
// applied to each block while it is in cache.
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <span>
#include <utility>

#include "autograd/fp8.h"
#include "autograd/node.h"
#include "autograd/ops/kernel.h"
#include "autograd/ops/plain.h"
#include "autograd/ops/product.h"
#include "core/device.h"
#include "core/kernels/activation.h"
#include "core/kernels/gemv.h"
#include "core/kernels/linear_gpu.h"
#include "core/quantized.h"

namespace lathe {
namespace {

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  auto out = sizes.vec();
  out.back() = last;
  return out;
}

/// Returns the number of rows of x's last dim. A -1 in a shape would fail if that dim is empty.
template <class T>
int64_t rows_of(const T& x) {
  return c10::multiply_integers(x.sizes().slice(0, x.sizes().size() - 1));
}

at::ScalarType type_of(const at::Tensor& t) { return t.scalar_type(); }
at::ScalarType type_of(const Variable& v) { return v.dtype(); }

void check_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  LATHE_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "the last dim of x must be ", weight.size(weight.dim() - 1));
  LATHE_CHECK(x.scalar_type() == weight.scalar_type(), "x and weight must have one dtype");
  LATHE_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
              "bias must have shape [", weight.size(0), "]");
  for (const at::Tensor& t : {weight, bias})
    LATHE_CHECK(!t.defined() || t.device() == x.device(), "x is on ", x.device().str(),
                ", another input is not");
}

bool fused(const at::Tensor& x, const at::Tensor& weight) {
  return kernel_ready(x) && kernel_ready(weight) && x.scalar_type() == weight.scalar_type();
}

/// Returns activation(x W^T + bias) + residual. Stores the activation's argument in `before` if it
/// is given.
at::Tensor fused_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& residual, Activation activation, at::Tensor* before) {
  const at::Tensor in = x.contiguous(), w = weight.contiguous(), b = as_float(bias),
                   add = residual.defined() ? residual.contiguous() : residual;
  at::Tensor y = at::empty(with_last(x.sizes(), w.size(0)),
                           residual.defined() ? residual.options() : x.options());
  Epilogue e{.out = matrix_of(y), .bias = floats_of(b), .activation = activation};
  if (before != nullptr) e.before = matrix_of(*before = at::empty_like(y));
  if (add.defined()) e.residual = matrix_of(add);
  gemm_nt(matrix_of(in), matrix_of(w), in.numel() / w.size(1), w.size(0), w.size(1), e);
  bump_version(y);
  return y;
}

/// One of several layers y = x W^T + b with a common x, and its gradients.
struct Layer {
  at::Tensor dy;  ///< undefined if no gradient flows
  const at::Tensor& weight;
  at::ScalarType weight_grad;  ///< dtype of dW
  size_t slot;                 ///< the index of the weight among the op's inputs
  bool need_weight = false, need_bias = false;
  at::Tensor dw{}, db{};
};

/// Computes dx = the sum of dy W over the layers, if it is needed, and for each layer dW = dy^T x,
/// added to the gradient that the weight has already, and db = sum of dy over the rows. Products
/// with a common factor read it once. x may be undefined if no weight needs a gradient.
at::Tensor fused_backward(const at::Tensor& x_, std::span<Layer> layers, bool need_x,
                          GradSlots& slots) {
  const at::Tensor x = x_.defined() ? x_.contiguous() : x_;
  const at::Tensor& some_dy =
      std::ranges::find_if(layers, [](const Layer& layer) { return layer.dy.defined(); })->dy;
  const int64_t in = layers[0].weight.size(1), rows = rows_of(some_dy);
  const at::TensorOptions options = layers[0].weight.options();
  const auto sizes = with_last(some_dy.sizes(), in);

  c10::SmallVector<Product, 3> to_x;
  c10::SmallVector<LeftFactor, 3> to_weights;
  // These keep contiguous copies of weights alive until the products have run.
  c10::SmallVector<at::Tensor, 3> read;

  for (Layer& layer : layers) {
    if (!layer.dy.defined()) continue;

    const int64_t out = layer.weight.size(0);
    layer.dy = layer.dy.to(layer.weight.scalar_type()).contiguous();

    if (need_x) {
      read.push_back(layer.weight.contiguous());
      to_x.push_back({matrix_of(layer.dy), matrix_of(read.back()), out});
    }

    // If only the bias needs a gradient, there is no matrix product that could sum dy along the
    // way.
    if (!layer.need_weight) {
      if (layer.need_bias)
        layer.db = layer.dy.reshape({rows, out}).sum(0, /*keepdim=*/false, at::kFloat);
      continue;
    }

    if (layer.need_bias) layer.db = at::empty({out}, options.dtype(at::kFloat));

    // Add to the weight's gradient in the product itself, where this pass owns one in the right
    // dtype.
    layer.dw = slots.take(layer.slot, layer.weight_grad);
    const bool add = layer.dw.defined();
    if (!add) layer.dw = at::empty({out, in}, options.dtype(layer.weight_grad));
    Epilogue e{.out = matrix_of(layer.dw)};
    if (add) e.residual = e.out;
    to_weights.push_back({matrix_of(layer.dy), out, e,
                          layer.need_bias ? layer.db.mutable_data_ptr<float>() : nullptr});
  }

  at::Tensor dx;
  if (!to_x.empty()) {
    dx = at::empty(sizes, options);
    gemm(to_x, rows, in, {.out = matrix_of(dx)});
    bump_version(dx);
  }

  if (!to_weights.empty()) gemm_tn(to_weights, matrix_of(x), in, rows);
  for (const Layer& layer : layers) {
    if (layer.dw.defined()) bump_version(layer.dw);
  }
  return dx;
}

/// Returns residual + y in the residual's dtype.
at::Tensor added(const at::Tensor& residual, const at::Tensor& y) {
  if (!gpu_kernel_ready(residual) || !gpu_kernel_ready(y) || y.numel() % 4 != 0)
    return (residual + y).to(residual.scalar_type());
  const at::Tensor a = for_kernels(residual), b = for_kernels(y), out = at::empty_like(a);
  cuda_api().add(a.const_data_ptr(), element_of(a.scalar_type()), b.const_data_ptr(),
                 element_of(b.scalar_type()), out.mutable_data_ptr(), a.numel());
  bump_version(out);
  return out;
}

/// Returns the sums of the columns of dy [N, C]; on a GPU in float32 or float64.
at::Tensor bias_gradient(const at::Tensor& dy_) {
  const bool is_narrow = dy_.is_cuda() && dy_.scalar_type() != at::kDouble;
  if (!gpu_kernel_ready(dy_) || !column_sums_on_gpu(dy_.size(1)))
    return is_narrow ? dy_.sum(0, /*keepdim=*/false, at::kFloat) : dy_.sum(0);
  const at::Tensor dy = for_kernels(dy_);
  const at::TensorOptions options = dy.options().dtype(at::kFloat);
  const int64_t rows = dy.size(0), columns = dy.size(1);
  const at::Tensor partials = at::empty({column_partials(rows, columns)}, options),
                   sums = at::empty({columns}, options);
  cuda_api().column_sums(matrix_of(dy), rows, columns, partials.mutable_data_ptr<float>(),
                         sums.mutable_data_ptr<float>());
  bump_version(sums);
  return sums;
}
Variable bias_gradient(const Variable& dy) { return sum(dy, 0); }

struct LinearOp {
  static constexpr OpInfo info{.name = "linear", .amp = Amp::low, .optional = inputs_at({2, 3})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote, Amp::promote};
  at::ScalarType weight_grad = at::kFloat;  // dtype of dW if a kernel writes it
  Needs<4> needs{};
  bool is_fused = false;
  Saved x = Saved::input(0), weight = Saved::input(1);

  // y = x W^T + b + residual, in the residual's dtype if there is one
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias,
                     const at::Tensor& residual) {
    check_linear(x_, weight_, bias);
    if (needs[1]) x = x_;
    weight = weight_;
    is_fused = fused(x_, weight_);
    const auto sizes = with_last(x_.sizes(), weight_.size(0));
    LATHE_CHECK(!residual.defined() || residual.sizes() == at::IntArrayRef(sizes),
                "the residual must be ", describe(at::IntArrayRef(sizes)));
    if (is_fused && (!residual.defined() || kernel_dtype(residual.scalar_type())))
      return fused_forward(x_, weight_, bias, residual, Activation::none, nullptr);
    const at::ScalarType dtype = widened(x_) ? at::kFloat : x_.scalar_type();
    const at::Tensor rows = x_.reshape({rows_of(x_), x_.size(-1)}).to(dtype), w = weight_.to(dtype);
    at::Tensor y = bias.defined() ? at::addmm(bias.to(dtype), rows, w.t()) : rows.matmul(w.t());
    y = y.to(x_.scalar_type());
    if (y.sizes() != at::IntArrayRef(sizes))
      y = y.view(sizes);  // only if needed: a view also keeps its base alive
    return residual.defined() ? added(residual, y) : y;
  }
  // dx = dy W, dW = dy^T x, db = sum of dy over the rows, dresidual = dy
  Grads<4> backward(const at::Tensor& dy, Needs<4> needs, GradSlots& slots) const {
    if (!is_fused) return composed(dy, needs);
    Layer layer{dy, weight.data(), weight_grad, 1, needs[1], needs[2]};
    const at::Tensor dx = fused_backward(x.data(), {&layer, 1}, needs[0], slots);
    return {dx, layer.dw, layer.db, needs[3] ? dy : at::Tensor()};
  }
  Grads<4, Variable> backward(const Variable& dy, Needs<4> needs) const {
    return composed(dy, needs);
  }
  template <class T>
  Grads<4, T> composed(const T& dy, Needs<4> needs) const {
    const T w = weight.as<T>();
    const int64_t n = rows_of(dy);
    const auto sizes = with_last(dy.sizes(), w.size(1));
    const T dy_rows = reshape(cast(dy, weight.data().scalar_type()), {n, w.size(0)});
    return {needs[0] ? reshape(product(dy_rows, w), sizes) : T(),
            needs[1] ? product(transpose(dy_rows, 0, 1), reshape(x.as<T>(), {n, w.size(1)})) : T(),
            needs[2] ? bias_gradient(dy_rows) : T(), needs[3] ? dy : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias,
                       const at::Tensor& residual, const at::Tensor& y) {
    const double forward = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(x.size(-1));
    const double add = bias.defined() ? static_cast<double>(y.numel()) : 0;
    const double join = residual.defined() ? static_cast<double>(y.numel()) : 0;
    return {.forward = {forward, add + join}, .backward = {2 * forward, add}};
  }
  static Flops needed(Flops both, Needs<4> needs) { return for_needed(both, needs); }
};

// A linear layer and its GELU (tanh form), only where there are kernels for it.
struct LinearGelu {
  static constexpr OpInfo info{.name = "linear_gelu", .amp = Amp::low, .optional = inputs_at({2})};
  static constexpr std::array policies{Amp::low, Amp::low, Amp::promote};
  at::ScalarType weight_grad = at::kFloat;
  Needs<3> needs{};
  Saved x = Saved::input(0), weight = Saved::input(1), bias = Saved::input(2),
        before = Saved::activation();

  // y = gelu(u), u = x W^T + b
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias_) {
    check_linear(x_, weight_, bias_);
    x = x_;
    weight = weight_;
    bias = bias_;
    at::Tensor u;
    at::Tensor y = fused_forward(x_, weight_, bias_, {}, Activation::gelu,
                                 needs[0] || needs[1] || needs[2] ? &u : nullptr);
    before = u;
    return y;
  }
  // In a low precision `before` is rounded and y is not computed from it.
  bool has_result() const { return before.defined() && before.data().scalar_type() == at::kFloat; }
  at::Tensor result() const {
    const at::Tensor& u = before.data();
    at::Tensor y = at::empty_like(u);
    gelu_forward(u.const_data_ptr(), y.mutable_data_ptr(), Element::f32, u.numel());
    bump_version(y);
    return y;
  }
  // du = dy gelu'(u), then as for a linear layer
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needs, GradSlots& slots) const {
    const at::Tensor dy = dy_.contiguous(), &u = before.data();
    const at::Tensor du = at::empty_like(u);
    gelu_backward(u.const_data_ptr(), dy.const_data_ptr(), du.mutable_data_ptr(),
                  element_of(u.scalar_type()), u.numel());
    Layer layer{du, weight.data(), weight_grad, 1, needs[1], needs[2]};
    const at::Tensor dx = fused_backward(x.data(), {&layer, 1}, needs[0], slots);
    return {dx, layer.dw, layer.db};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    return plain_gradients<3>({x.as<Variable>(), weight.as<Variable>(), bias.as<Variable>()}, needs,
                              {dy}, [](const std::vector<Variable>& in) {
                                return std::vector{gelu(linear(in[0], in[1], in[2]))};
                              });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& y) {
    OpFlops f = LinearOp::flops(x, weight, bias, {}, y);
    f.forward.other += 8 * static_cast<double>(y.numel());
    f.backward.other += 14 * static_cast<double>(y.numel());
    return f;
  }
  static Flops needed(Flops both, Needs<3> needs) { return for_needed(both, needs); }
};

// The two linear layers of a SwiGLU and their product, only where there are kernels for it.
struct LinearSwiglu {
  static constexpr OpInfo info{.name = "linear_swiglu", .amp = Amp::low};
  at::ScalarType gate_grad = at::kFloat, up_grad = at::kFloat;
  Needs<3> needs{};
  Saved x = Saved::input(0), gate = Saved::input(1), up = Saved::input(2), a = Saved::activation(),
        b = Saved::activation();

  // y = silu(a) b, a = x G^T, b = x U^T
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& gate_, const at::Tensor& up_) {
    check_linear(x_, gate_, {}), check_linear(x_, up_, {});
    LATHE_CHECK(gate_.sizes() == up_.sizes(), "gate and up must have one shape");
    x = x_, gate = gate_, up = up_;
    const at::Tensor left = fused_forward(x_, gate_, {}, {}, Activation::none, nullptr);
    at::Tensor y = at::empty_like(left), right;
    const at::Tensor in = x_.contiguous(), w = up_.contiguous();
    Epilogue e{.out = matrix_of(y), .activation = Activation::swiglu, .gate = matrix_of(left)};
    if (needs[0] || needs[1] || needs[2]) e.before = matrix_of(right = at::empty_like(y));
    gemm_nt(matrix_of(in), matrix_of(w), in.numel() / w.size(1), w.size(0), w.size(1), e);
    bump_version(y);
    a = left, b = right;
    return y;
  }
  bool has_result() const { return b.defined() && b.data().scalar_type() == at::kFloat; }
  at::Tensor result() const {
    at::Tensor y = at::empty_like(a.data());
    swiglu_product(a.data().const_data_ptr(), b.data().const_data_ptr(), y.mutable_data_ptr(),
                   Element::f32, y.numel());
    bump_version(y);
    return y;
  }
  // s = sigmoid(a): da = dy b (s + a s (1 - s)), db = dy a s; dx = da G + db U, dG = da^T x, dU =
  // db^T x
  Grads<3> backward(const at::Tensor& dy_, Needs<3> needed, GradSlots& slots) const {
    const at::Tensor dy = dy_.to(a.data().scalar_type()).contiguous();
    const at::Tensor da = at::empty_like(a.data()), db = at::empty_like(a.data());
    const int64_t h = dy.size(-1);
    swiglu_backward(a.data().const_data_ptr(), b.data().const_data_ptr(), dy.const_data_ptr(),
                    da.mutable_data_ptr(), db.mutable_data_ptr(), element_of(dy.scalar_type()),
                    dy.numel() / h, h, h);
    bump_version(da), bump_version(db);
    Layer layers[]{{da, gate.data(), gate_grad, 1, needed[1]},
                   {db, up.data(), up_grad, 2, needed[2]}};
    const at::Tensor dx = fused_backward(x.data(), layers, needed[0], slots);
    return {dx, layers[0].dw, layers[1].dw};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needed) const {
    return plain_gradients<3>(
        {x.as<Variable>(), gate.as<Variable>(), up.as<Variable>()}, needed, {dy},
        [](const std::vector<Variable>& in) {
          return std::vector{silu(linear(in[0], in[1])) * linear(in[0], in[2])};
        });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                       const at::Tensor& y) {
    const auto n = static_cast<double>(y.numel()),
               product = 4 * n * static_cast<double>(x.size(-1));
    return {.forward = {product, 6 * n}, .backward = {2 * product, 10 * n}};
  }
  static Flops needed(Flops both, Needs<3> needs) {
    // Of the four matrix products, two compute dx, and one each weight's gradient.
    both.matmul *= ((needs[0] ? 2 : 0) + (needs[1] ? 1 : 0) + (needs[2] ? 1 : 0)) / 4.0;
    return both;
  }
};

// The projections to queries, keys and values, only where there are kernels for it.
struct LinearQkv {
  static constexpr OpInfo info{
      .name = "linear_qkv", .amp = Amp::low, .optional = inputs_at({4, 5, 6})};
  static constexpr std::array policies{Amp::low,     Amp::low,     Amp::low,    Amp::low,
                                       Amp::promote, Amp::promote, Amp::promote};
  std::array<at::ScalarType, 3> weight_grad;
  Saved x = Saved::input(0);
  std::array<Saved, 3> weights{Saved::input(1), Saved::input(2), Saved::input(3)};
  std::array<Saved, 3> biases{Saved::input(4), Saved::input(5), Saved::input(6)};

  // y_i = x W_i^T + b_i
  std::vector<at::Tensor> forward(const at::Tensor& x_, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const at::Tensor& q_bias,
                                  const at::Tensor& k_bias, const at::Tensor& v_bias) {
    x = x_;
    std::vector<at::Tensor> y;
    for (const auto& [weight, bias] :
         {std::pair(q, q_bias), std::pair(k, k_bias), std::pair(v, v_bias)}) {
      check_linear(x_, weight, bias);
      weights[y.size()] = weight, biases[y.size()] = bias;
      y.push_back(fused_forward(x_, weight, bias, {}, Activation::none, nullptr));
    }
    return y;
  }
  // dx = sum of dy_i W_i, dW_i = dy_i^T x, db_i = sum of dy_i over the rows
  Grads<7> backward(const GradList<at::Tensor>& dy, Needs<7> needs, GradSlots& slots) const {
    const auto layer = [&](size_t i) {
      return Layer{dy[i], weights[i].data(), weight_grad[i], 1 + i, needs[1 + i], needs[4 + i]};
    };
    Layer of[]{layer(0), layer(1), layer(2)};
    const at::Tensor dx = fused_backward(x.data(), of, needs[0], slots);
    return {dx, of[0].dw, of[1].dw, of[2].dw, of[0].db, of[1].db, of[2].db};
  }
  Grads<7, Variable> backward(const GradList<Variable>& dy, Needs<7> needs) const {
    const auto of = [](const std::array<Saved, 3>& all, size_t i) { return all[i].as<Variable>(); };
    return plain_gradients<7>({x.as<Variable>(), of(weights, 0), of(weights, 1), of(weights, 2),
                               of(biases, 0), of(biases, 1), of(biases, 2)},
                              needs, dy, [](const std::vector<Variable>& in) {
                                return std::vector{linear(in[0], in[1], in[4]),
                                                   linear(in[0], in[2], in[5]),
                                                   linear(in[0], in[3], in[6])};
                              });
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const at::Tensor& q_bias, const at::Tensor& k_bias,
                       const at::Tensor& v_bias, const at::Tensor&) {
    OpFlops all;
    for (const auto& [weight, bias] :
         {std::pair(q, q_bias), std::pair(k, k_bias), std::pair(v, v_bias)}) {
      const auto n = static_cast<double>(rows_of(x) * weight.size(0)), add = bias.defined() ? n : 0;
      const double product = 2 * n * static_cast<double>(x.size(-1));
      all.forward += {product, add}, all.backward += {2 * product, add};
    }
    return all;
  }
  static Flops needed(Flops both, Needs<7> needs) {  // either all weights need a gradient or none
    return for_needed(both, Needs<2>{needs[0], needs[1]});
  }
};

// A linear layer with a frozen quantized weight, which is dequantized to x's dtype for each matrix
// product.
struct LinearQuantized {
  static constexpr OpInfo info{
      .name = "linear_quantized", .amp = Amp::low, .optional = inputs_at({1})};
  std::shared_ptr<const QuantizedTensor> weight;

  // y = x W^T + b
  at::Tensor forward(const at::Tensor& x, const at::Tensor& bias) {
    LATHE_CHECK(x.dim() >= 1 && x.size(-1) == weight->sizes()[1], "the last dim of x must be ",
                weight->sizes()[1]);
    if (kernel_ready(x) &&
        gemv_ready(
            element_of(x.scalar_type()), Element::f32,
            rows_of(
                x))) {  // multiply without dequantizing if reading the weight dominates the time
      if (const auto bits = weight->few_bits()) return few_bits_product(x, *bits, bias);
    }
    return LinearOp{}.forward(x, weight->dequantize(x.scalar_type()), bias, {});
  }
  at::Tensor few_bits_product(const at::Tensor& x, const QuantizedView& bits,
                              const at::Tensor& bias) const {
    const int64_t out = weight->sizes()[0], in = weight->sizes()[1];
    const at::Tensor rows = x.contiguous(), b = as_float(bias);
    at::Tensor y = at::empty(with_last(x.sizes(), out), x.options());
    gemv_few_bits(matrix_of(rows), bits, rows_of(x), out, in,
                  {.out = matrix_of(y), .bias = floats_of(b)});
    bump_version(y);
    return y;
  }
  // dx = dy W, db = sum of dy over the rows
  template <class T>
  Grads<2, T> backward(const T& dy, Needs<2> needs) const {
    const T rows = reshape(dy, {-1, dy.size(-1)});
    const auto sizes = with_last(dy.sizes(), weight->sizes()[1]);
    const at::ScalarType dtype = type_of(dy);
    return {needs[0] ? reshape(product(rows, constant<T>(weight->dequantize(dtype))), sizes) : T(),
            needs[1] ? sum(rows, 0) : T()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& y) {
    OpFlops f = LinearOp::flops(x, {}, bias, {}, y);
    f.backward.matmul /= 2;  // the weight gets no gradient
    return f;
  }
};

// A linear layer in fp8: q(t) is t scaled and rounded to fp8. Second derivatives treat rounding as
// the identity, and dy is not rounded.
struct LinearFp8 {
  static constexpr OpInfo info{.name = "linear_fp8", .optional = inputs_at({2})};
  std::shared_ptr<const Fp8Scaling> scaling;
  at::ScalarType out, weight_grad;  // dtypes of y and dx, and of dweight
  Saved x{}, weight{};
  Saved x_factor{}, weight_factor{};

  // y = q(x) q(W)^T + b
  at::Tensor forward(const at::Tensor& x_, const at::Tensor& weight_, const at::Tensor& bias) {
    LATHE_CHECK(weight_.dim() == 2 && x_.dim() >= 1 && x_.size(-1) == weight_.size(1),
                "the last dim of x must be ", weight_.size(weight_.dim() - 1));
    const at::Tensor rows = x_.reshape({-1, x_.size(-1)});
    const Fp8Tensor qx =
        to_fp8(rows, scaling->largest(Fp8Scaling::input, rows), at::kFloat8_e4m3fn);
    const Fp8Tensor qw =
        to_fp8(weight_, scaling->largest(Fp8Scaling::weight, weight_), at::kFloat8_e4m3fn);
    const at::Tensor y =
        fp8_matmul_nt(qx, qw, bias, out).view(with_last(x_.sizes(), weight_.size(0)));
    x = qx.data, x_factor = qx.factor;
    weight = qw.data, weight_factor = qw.factor;
    return y;
  }
  // dx = q(dy) q(W), dW = q(dy)^T q(x), db = sum of dy over the rows
  Grads<3> backward(const at::Tensor& dy, Needs<3> needs) const {
    const at::Tensor rows = dy.reshape({-1, dy.size(-1)});
    const Fp8Tensor g =
        to_fp8(rows, scaling->largest(Fp8Scaling::gradient, rows), at::kFloat8_e5m2);
    const auto sizes = with_last(dy.sizes(), x.data().size(1));
    return {needs[0]
                ? fp8_matmul_nt(g, {weight.data().t(), weight_factor.data()}, {}, out).view(sizes)
                : at::Tensor(),
            needs[1] ? fp8_matmul_nt({g.data.t(), g.factor}, {x.data().t(), x_factor.data()}, {},
                                     weight_grad)
                     : at::Tensor(),
            needs[2] ? rows.sum(0, /*keepdim=*/false, at::kFloat) : at::Tensor()};
  }
  Grads<3, Variable> backward(const Variable& dy, Needs<3> needs) const {
    const auto sizes = with_last(dy.sizes(), x.data().size(1));
    const auto back = [](const Saved& q, const Saved& factor, at::IntArrayRef shape, size_t input) {
      return Variable((q.data().to(at::kFloat) * factor.data()).view(shape),
                      running_node()->next[input]);
    };
    const Variable rows = reshape(cast(dy, at::kFloat), {-1, dy.sizes().back()});
    const Variable in = back(x, x_factor, sizes, 0),
                   w = back(weight, weight_factor, weight.data().sizes(), 1);
    return {needs[0] ? reshape(matmul(rows, w), sizes) : Variable(),
            needs[1] ? matmul(transpose(rows, 0, 1), reshape(in, x.data().sizes())) : Variable(),
            needs[2] ? sum(rows, 0) : Variable()};
  }
  static OpFlops flops(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& y) {
    return LinearOp::flops(x, weight, bias, {}, y);
  }
  static Flops needed(Flops both, Needs<3> needs) { return for_needed(both, needs); }
};

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias,
                const Variable& residual) {
  require_defined("linear", {&x, &weight});
  const Precision* kept = precision_of(weight);
  const bool fp8 = kept != nullptr && kept->fp8 && mode().fp8;
  if (kept != nullptr && (kept->quantized || fp8)) {
    const Variable y = kept->quantized ? apply(LinearQuantized{kept->quantized}, x, bias)
                                       : apply(LinearFp8{.scaling = kept->fp8,
                                                         .out = mode().compute,
                                                         .weight_grad = kept->grad_dtype},
                                               x, weight, bias);
    return residual.defined() ? cast(add(residual, y), residual.dtype()) : y;
  }
  return apply(LinearOp{.weight_grad = kernel_grad_dtype(weight)}, x, weight, bias, residual);
}

Variable linear_gelu(const Variable& x, const Variable& weight, const Variable& bias) {
  require_defined("linear_gelu", {&x, &weight});
  if (!kernel_linear(x, weight)) return gelu(linear(x, weight, bias));
  return apply(LinearGelu{.weight_grad = kernel_grad_dtype(weight)}, x, weight, bias);
}

Variable linear_swiglu(const Variable& x, const Variable& gate, const Variable& up) {
  require_defined("linear_swiglu", {&x, &gate, &up});
  if (!kernel_linear(x, gate) || !kernel_linear(x, up))
    return silu(linear(x, gate)) * linear(x, up);
  return apply(LinearSwiglu{.gate_grad = kernel_grad_dtype(gate), .up_grad = kernel_grad_dtype(up)},
               x, gate, up);
}

std::array<Variable, 3> linear_qkv(const Variable& x, const std::array<Variable, 3>& weights,
                                   const std::array<Variable, 3>& biases) {
  require_defined("linear_qkv", {&x, &weights[0], &weights[1], &weights[2]});
  const auto& [q, k, v] = weights;
  const auto fits = [&](const Variable& w) {
    return kernel_linear(x, w) && w.requires_grad() == q.requires_grad();
  };
  if (!std::ranges::all_of(weights, fits))
    return {linear(x, q, biases[0]), linear(x, k, biases[1]), linear(x, v, biases[2])};
  const LinearQkv op{
      .weight_grad = {kernel_grad_dtype(q), kernel_grad_dtype(k), kernel_grad_dtype(v)}};
  const std::vector<Variable> y = apply(op, x, q, k, v, biases[0], biases[1], biases[2]);
  return {y[0], y[1], y[2]};
}

}  // namespace lathe
