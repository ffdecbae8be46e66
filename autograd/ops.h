// Every op: the headers of ops/ by family, and what stands here. Shapes broadcast as ATen's do
// unless said otherwise; dims may be negative. An op's struct, with its formula, is in
// ops/<family>.cc.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops/attention.h"
#include "autograd/ops/images.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/math.h"
#include "autograd/ops/pair.h"
#include "autograd/ops/reductions.h"
#include "autograd/ops/shapes.h"
#include "autograd/variable.h"
#include "core/rng.h"

namespace lathe {

// Elementwise (ops/elementwise.cc).
Variable add(const Variable& a, const Variable& b);
Variable sub(const Variable& a, const Variable& b);
Variable mul(const Variable& a, const Variable& b);
Variable div(const Variable& a, const Variable& b);
Variable add_scalar(const Variable& x, double c);
Variable mul_scalar(const Variable& x, double c);
Variable neg(const Variable& x);
Variable exp(const Variable& x);
Variable log(const Variable& x);
Variable sqrt(const Variable& x);
Variable pow(const Variable& x, double exponent);
Variable tanh(const Variable& x);
Variable erf(const Variable& x);
Variable sigmoid(const Variable& x);
Variable relu(const Variable& x);
Variable silu(const Variable& x);
enum class Gelu { tanh, exact };
/// Hendrycks and Gimpel 2016; Gelu::tanh is the approximation that GPT-2 uses.
Variable gelu(const Variable& x, Gelu form = Gelu::tanh);
/// x, but `value` where mask (bool, broadcast to x) is true.
Variable masked_fill(const Variable& x, const at::Tensor& mask, double value);
/// The same value in another floating-point dtype.
Variable cast(const Variable& x, at::ScalarType dtype);

// Reductions (ops/reduce.cc). No dims: all of them.
Variable sum(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, bool keepdim = false);
/// float16 and bfloat16 are summed in float32, and the mean is rounded once.
Variable mean(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, bool keepdim = false);
/// The largest along a dim; a tie shares its gradient equally.
Variable amax(const Variable& x, int64_t dim, bool keepdim = false);
Variable softmax(const Variable& x, int64_t dim);
Variable log_softmax(const Variable& x, int64_t dim);
/// Sums the dims that broadcasting `sizes` to x's shape added: expand's adjoint.
Variable sum_to(const Variable& x, at::IntArrayRef sizes);

// Shapes (ops/shape.cc, index.cc). Results may be views of x's storage.
Variable reshape(const Variable& x, at::IntArrayRef sizes);
/// Dims `first` to `last` as one.
Variable flatten(const Variable& x, int64_t first = 0, int64_t last = -1);
Variable expand(const Variable& x, at::IntArrayRef sizes);
Variable transpose(const Variable& x, int64_t a, int64_t b);
Variable permute(const Variable& x, at::IntArrayRef dims);
Variable slice(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
/// slice's adjoint: zeros of `size` along dim, with x at [start, end) by step.
Variable slice_backward(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step,
                        int64_t size);
Variable unsqueeze(const Variable& x, int64_t dim);
/// The slice at one place of a dim, without that dim.
Variable select(const Variable& x, int64_t dim, int64_t place);
/// x at places of its first dims: int64 tensors, broadcast together, or bool masks over as many
/// dims as they have; an undefined one leaves its dim whole. NumPy's indexing by arrays, and
/// at::index's. A place may be taken many times.
Variable index(const Variable& x, const std::vector<at::Tensor>& indices);
/// index's adjoint: zeros of `sizes`, with x added at the indices.
Variable index_backward(const Variable& x, const std::vector<at::Tensor>& indices,
                        at::IntArrayRef sizes);
/// Joins along a dim; a vector of no elements joins anything, as in ATen.
Variable cat(const std::vector<Variable>& xs, int64_t dim);
/// Parts of the given lengths along a dim, which must be x's in all.
std::vector<Variable> split(const Variable& x, at::IntArrayRef lengths, int64_t dim = 0);
/// x's slices along a dim, without it.
std::vector<Variable> unbind(const Variable& x, int64_t dim = 0);
/// y[i][j] = x[index[i][j]][j] for dim 0; index int64 of x's shape but for `dim`.
Variable gather(const Variable& x, int64_t dim, const at::Tensor& index);
/// gather's adjoint: zeros of `size` along dim, with x added at index.
Variable gather_backward(const Variable& x, int64_t dim, const at::Tensor& index, int64_t size);
/// The k largest (or smallest) along a dim, in order, and their places (int64).
std::pair<Variable, at::Tensor> topk(const Variable& x, int64_t k, int64_t dim = -1,
                                     bool largest = true);
/// Zeroes what lies below the given diagonal of the last two dims.
Variable triu(const Variable& x, int64_t diagonal = 0);
Variable contiguous(const Variable& x);

// Matrices (ops/matmul.cc).
/// [..., n, k] x [..., k, m] -> [..., n, m]; batch dims broadcast; at least 2 dims each.
Variable matmul(const Variable& a, const Variable& b);
/// The dtype that products of `dtype` are taken in on CPUs: float32 for float16 where a CPU has no
/// float16 arithmetic, and for fp8.
at::ScalarType cpu_product_dtype(at::ScalarType dtype);

// Linear layers (ops/linear.cc). x [..., in], weight [out, in], bias [out] or undefined -> [...,
// out].
/// x W^T + bias + residual; the result has the dtype of `residual` [..., out], where one is given.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Variable& residual = {});
/// gelu(linear(x, weight, bias)), the tanh form; one fused op where there are kernels for it.
Variable linear_gelu(const Variable& x, const Variable& weight, const Variable& bias = {});
/// silu(linear(x, gate)) * linear(x, up), gate and up [h, in] (Shazeer 2020); one fused op where
/// there are kernels for it.
Variable linear_swiglu(const Variable& x, const Variable& gate, const Variable& up);
/// linear() of each weight and its bias: queries, keys and values of one x. One op where there are
/// kernels for it, whose backward reads x once and adds up dx as it makes it.
std::array<Variable, 3> linear_qkv(const Variable& x, const std::array<Variable, 3>& weights,
                                   const std::array<Variable, 3>& biases = {});

// Neural network (ops/norm.cc, swiglu.cc, embedding.cc, dropout.cc, attention.cc).
/// Over the last dim: weight and bias [C]; either may be undefined. Ba, Kiros and Hinton 2016. In
/// float32 or wider; the result has dtype `out`, or x's where that is undefined (under autocast
/// float32 at least). In float32 squares overflow where |x| exceeds 1e19, and the result is NaN.
Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);
/// x / sqrt(mean of x^2 + eps) * weight over the last dim; otherwise as layer_norm. Zhang and
/// Sennrich 2019.
Variable rms_norm(const Variable& x, const Variable& weight, double eps = 1e-5,
                  std::optional<at::ScalarType> out = std::nullopt);
/// silu(a) * b of x [..., 2 h], a the first half of the last dim and b the second -> [..., h].
/// Shazeer 2020.
Variable swiglu(const Variable& x);
/// Rows of weight [V, C]: ids int64 of any shape -> [..., C].
Variable embedding(const at::Tensor& ids, const Variable& weight);
/// Zeroes each element with probability p and scales the rest by 1/(1-p), in training
/// (core/mode.h); the identity otherwise. Dim 0 is the batch: an element's fate depends on its
/// place in the global batch, the step, `stream` and how often the step drew from it before, never
/// on how the batch was split. Srivastava et al. 2014.
Variable dropout(const Variable& x, double p, uint64_t stream = 0);
/// Scaled dot-product attention (Vaswani et al. 2017; causal) on packed projections [B, T, 3C] (q,
/// k, v in order) with `heads` heads -> [B, T, C]. Flash kernels, linear memory in T: Lathe's own
/// on CPUs (core/kernels/attention.h), ATen's on CUDA and where the own ones do not go; float64,
/// and on CUDA head sizes that are no multiple of 8 or above 256, are composed and take T^2.
/// `starts`, where it is defined: int64 [B, T], not decreasing along a row; place t sees none
/// before starts[t] <= t, as where several documents share a row (composed where the own kernel
/// does not go). Backward computes the probabilities again from a float32 log-sum-exp, so gradients
/// lose accuracy as scores grow, as in ATen's flash kernels: relative to the largest gradient 2e-5
/// at scores of 1e2 and 6e-4 at 1e4 in float32, and 1% in bfloat16.
Variable attention(const Variable& qkv_BT3C, int64_t heads, const at::Tensor& starts = {});

// Images (ops/conv.cc, pool.cc): x is [B, C, H, W]. Zeros stand around it as wide as the padding.
struct Conv2dOptions {
  Pair stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;  ///< of channels, each seeing its own inputs alone; divides C and O
};
/// Cross-correlation, as torch's: weight [O, C / groups, kh, kw], bias [O] or undefined -> [B, O,
/// H', W'], where H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1.
Variable conv2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv2dOptions& options = {});
/// conv2d's adjoints: in x, which had `sizes`, for dy [B, O, H', W'], and in the weight, which had
/// `sizes`.
Variable conv2d_input_grad(const Variable& dy, const Variable& weight, at::IntArrayRef sizes,
                           const Conv2dOptions& options = {});
Variable conv2d_weight_grad(const Variable& dy, const Variable& x, at::IntArrayRef sizes,
                            const Conv2dOptions& options = {});
/// The largest of each window, by default one beside the other; padding, at most half a window,
/// never counts. With ceil_mode the last window may reach beyond the padding, as long as it begins
/// in x or the padding before it.
Variable max_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride = std::nullopt,
                    Pair padding = 0, Pair dilation = 1, bool ceil_mode = false);
/// The mean of each window: of x and the zeros of padding, or of x alone; what lies beyond both
/// never counts.
Variable avg_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride = std::nullopt,
                    Pair padding = 0, bool ceil_mode = false, bool count_include_pad = true);
/// Its adjoint, for an x of `sizes`.
Variable avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes, Pair kernel, Pair stride,
                             Pair padding, bool ceil_mode = false, bool count_include_pad = true);
/// Means of out.h times out.w windows that cover x, whatever its size: row i begins at floor(i H /
/// out.h) and ends before ceil((i + 1) H / out.h).
Variable adaptive_avg_pool2d(const Variable& x, Pair out);
/// Its adjoint, for an x of `sizes`.
Variable adaptive_avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes);

// Batch norm (ops/batch_norm.cc), Ioffe and Szegedy 2015: over all dims but 1, which weight and
// bias [C] are of; either may be undefined. x [B, C, ...]. Statistics in float32 or wider; the
// result's dtype is as layer_norm's.
struct BatchNormed {
  Variable y;
  at::Tensor mean, var;  ///< [C], of this batch, the variance unbiased: for running statistics;
                         ///< undefined if x is empty
};
/// With the batch's own statistics; an error for one value a channel.
BatchNormed batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                       double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);
/// With given statistics [C], which are constants.
Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const at::Tensor& mean, const at::Tensor& var, double eps = 1e-5,
                    std::optional<at::ScalarType> out = std::nullopt);

// Cells of recurrent layers (ops/recurrent.cc), without their products; gates in torch's order. In
// float32 or wider.
/// Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000: gates [B, 4 H] = x
/// W_ih^T + h W_hh^T + b, in the order input, forget, cell, output, and state c [B, H] -> the next
/// h, in the gates' dtype, and c, in c's.
std::pair<Variable, Variable> lstm_cell(const Variable& gates, const Variable& c);
/// Cho et al. 2014, as cuDNN and torch have it: gates x W_ih^T + b_ih and h W_hh^T + b_hh [B, 3 H],
/// in the order reset, update, new, and h [B, H] -> the next h, in h's dtype.
Variable gru_cell(const Variable& x_gates, const Variable& h_gates, const Variable& h);

// Losses (ops/loss.cc). In float32 or wider.
/// -log softmax(logits)[target], summed over the targets that are not `ignore_index` and divided by
/// `divisor` (0: by their number; where all are ignored the loss is 0, and torch's NaN). What
/// ignored rows hold, NaN and infinities included, does not count. logits [N, V], targets int64 [N]
/// -> [].
Variable cross_entropy(const Variable& logits_NV, const at::Tensor& targets_N, double divisor = 0,
                       int64_t ignore_index = -100);
/// cross_entropy(linear(x, weight), targets, divisor). Where there are CPU kernels, without the
/// whole logits: rows go through in pieces, and both gradients are made on the way. x [N, C],
/// weight [V, C], targets int64 [N] -> [].
Variable linear_cross_entropy(const Variable& x_NC, const Variable& weight_VC,
                              const at::Tensor& targets_N, double divisor = 0,
                              int64_t ignore_index = -100);
/// Mean of (a - b)^2 over all elements.
Variable mse_loss(const Variable& a, const Variable& b);

}  // namespace lathe
