// Declares the ops of the folder ops/. Some families of ops have headers in ops/, which this header
// includes. Shapes broadcast as in ATen unless stated otherwise; dims may be negative. The structs
// of the ops, with their formulas, are in the .cc files of ops/.
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
/// Computes GELU (Hendrycks and Gimpel 2016). Gelu::tanh is the approximation that GPT-2 uses.
Variable gelu(const Variable& x, Gelu form = Gelu::tanh);
/// Returns x with `value` where mask (bool, broadcast to x) is true.
Variable masked_fill(const Variable& x, const at::Tensor& mask, double value);
/// Converts x to another dtype. The result for an integer or bool dtype has no gradient.
Variable cast(const Variable& x, at::ScalarType dtype);

// Reductions (ops/reduce.cc). sum() and mean() reduce all dims if none are given.
Variable sum(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, bool keepdim = false);
/// Averages over dims. float16 and bfloat16 are summed in float32, and the mean is rounded once.
Variable mean(const Variable& x, at::OptionalIntArrayRef dims = std::nullopt, bool keepdim = false);
/// Returns the maximum along a dim. Tied maxima share the gradient equally.
Variable amax(const Variable& x, int64_t dim, bool keepdim = false);
Variable softmax(const Variable& x, int64_t dim);
Variable log_softmax(const Variable& x, int64_t dim);
/// Sums x to shape `sizes`, which must broadcast to x's shape. This is the adjoint of expand.
Variable sum_to(const Variable& x, at::IntArrayRef sizes);

// Shapes (ops/shape.cc, index.cc). Results may be views of x's storage.
Variable reshape(const Variable& x, at::IntArrayRef sizes);
/// Joins dims `first` to `last` into one.
Variable flatten(const Variable& x, int64_t first = 0, int64_t last = -1);
Variable expand(const Variable& x, at::IntArrayRef sizes);
Variable transpose(const Variable& x, int64_t a, int64_t b);
Variable permute(const Variable& x, at::IntArrayRef dims);
Variable slice(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step = 1);
/// Returns a tensor with `size` positions along dim, whose slice start:end:step is x and which is
/// zero elsewhere. This is the adjoint of slice.
Variable slice_backward(const Variable& x, int64_t dim, int64_t start, int64_t end, int64_t step,
                        int64_t size);
Variable unsqueeze(const Variable& x, int64_t dim);
/// Returns the slice at one position of a dim, without that dim.
Variable select(const Variable& x, int64_t dim, int64_t index);
/// Indexes the first dims of x, as at::index and NumPy's indexing by arrays do. An int64 tensor
/// indexes one dim; the int64 tensors are broadcast together. A bool mask indexes as many dims as
/// it has. An undefined tensor keeps all positions of one dim. A position may occur many times.
Variable index(const Variable& x, const std::vector<at::Tensor>& indices);
/// Returns zeros of `sizes`, with x added at the indices. This is the adjoint of index.
Variable index_backward(const Variable& x, const std::vector<at::Tensor>& indices,
                        at::IntArrayRef sizes);
/// Concatenates along a dim. A 1-D tensor without elements can be joined with anything, as in ATen.
Variable cat(const std::vector<Variable>& xs, int64_t dim);
/// Splits x along a dim into parts of the given lengths, which must add up to the size of the dim.
std::vector<Variable> split(const Variable& x, at::IntArrayRef lengths, int64_t dim = 0);
/// Returns the slices of x along a dim, without that dim.
std::vector<Variable> unbind(const Variable& x, int64_t dim = 0);
/// Returns y[i][j] = x[index[i][j]][j] for dim 0. `index` is int64 and has as many dims as x. Each
/// size of `index` is at most the same size of x, except along `dim`, where `index` may have any
/// size. The result has the shape of `index`.
Variable gather(const Variable& x, int64_t dim, const at::Tensor& index);
/// Returns zeros of `size` along dim, with x added at the positions in `index`. This is the adjoint
/// of gather.
Variable gather_backward(const Variable& x, int64_t dim, const at::Tensor& index, int64_t size);
/// Returns the k largest (or smallest) elements along a dim, in order, and their positions (int64).
std::pair<Variable, at::Tensor> topk(const Variable& x, int64_t k, int64_t dim = -1,
                                     bool largest = true);
/// Zeroes the elements below the given diagonal of the last two dims.
Variable triu(const Variable& x, int64_t diagonal = 0);
Variable contiguous(const Variable& x);

// Matrices (ops/matmul.cc).
/// Multiplies matrices: [..., n, k] x [..., k, m] -> [..., n, m]. Batch dims broadcast; each factor
/// has at least 2 dims.
Variable matmul(const Variable& a, const Variable& b);
/// Returns the dtype to which factors of `dtype` are converted for matrix products on CPUs: float32
/// for float8_e4m3fn, and for float16 if the CPU has no float16 arithmetic; otherwise `dtype`.
/// Lathe's kernels may still multiply in float32 (multiplied_as() in core/kernels/gemm.h).
at::ScalarType cpu_product_dtype(at::ScalarType dtype);

// Linear layers (ops/linear.cc, linear_fused.cc): x [..., in], weight [out, in], bias [out] or
// undefined -> [..., out].
/// Returns x W^T + bias + residual. The result has the dtype of `residual` [..., out] if one is
/// given.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Variable& residual = {});
/// Returns gelu(linear(x, weight, bias)) in the tanh form. It is one fused op where there are
/// kernels for it.
Variable linear_gelu(const Variable& x, const Variable& weight, const Variable& bias = {});
/// Returns silu(linear(x, gate)) * linear(x, up), for gate and up [h, in] (Shazeer 2020). It is one
/// fused op where there are kernels for it.
Variable linear_swiglu(const Variable& x, const Variable& gate, const Variable& up);
/// Returns linear() of x with each weight and its bias: the queries, keys and values. Where there
/// are kernels for it, this is one op. In its backward pass, the matmuls accumulate the three terms
/// of dx and, on CPUs, read x only once for the gradients of all weights.
std::array<Variable, 3> linear_qkv(const Variable& x, const std::array<Variable, 3>& weights,
                                   const std::array<Variable, 3>& biases = {});

// Neural network (ops/norm.cc, swiglu.cc, embedding.cc, dropout.cc, attention.cc).
/// Normalizes over the last dim. Weight and bias are [C]; either may be undefined. Ba, Kiros and
/// Hinton 2016. Computes in float32 or wider. The result has dtype `out`. By default, it has the
/// dtype of x or, under autocast, at least float32. In float32, sums of squares overflow if |x -
/// mean| comes near 1e19; Lathe's kernels then return NaN.
Variable layer_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);
/// Returns x / sqrt(mean of x^2 + eps) * weight over the last dim. The weight, the dtypes and the
/// overflow are as in layer_norm. Zhang and Sennrich 2019.
Variable rms_norm(const Variable& x, const Variable& weight, double eps = 1e-5,
                  std::optional<at::ScalarType> out = std::nullopt);
/// Returns silu(a) * b [..., h] for x [..., 2 h], where a is the first half of the last dim and b
/// the second. Shazeer 2020.
Variable swiglu(const Variable& x);
/// Looks up rows of weight [V, C]: ids int64 of any shape -> [..., C].
Variable embedding(const at::Tensor& ids, const Variable& weight);
/// In training (core/mode.h), zeroes each element with probability p and scales the other elements
/// by 1/(1-p). Outside of training, returns x. Dim 0 is the batch. Whether an element is dropped
/// depends on its position in the global batch, the seed, the step, `stream`, and how often the
/// TrainingStep has drawn from that stream before. It does not depend on how the batch was split.
/// Srivastava et al. 2014.
Variable dropout(const Variable& x, double p, uint64_t stream = 0);
/// Computes causal scaled dot-product attention (Vaswani et al. 2017) on packed projections [B, T,
/// 3C] (q, k, v in order) with `heads` heads -> [B, T, C]. It uses flash kernels with memory linear
/// in T: Lathe's on CPUs (core/kernels/attention.h), ATen's on CUDA and where Lathe's do not apply.
/// Inputs in float64, and on CUDA heads whose size is above 256 or not a multiple of 8, use a
/// composed form with memory T^2. `starts`, if defined, is int64 [B, T] and separates the documents
/// of a row: position t does not see positions before starts[t], which is at most t and does not
/// decrease along a row. With `starts`, memory is linear on a GPU only if each starts[t] equals t
/// or starts[t - 1], and on a CPU only if Lathe's kernel applies. Backward recomputes the
/// probabilities from a float32 log-sum-exp, so gradients lose accuracy as scores grow, as in
/// ATen's flash kernels: errors relative to the largest gradient are 2e-5 at scores of 1e2 and 6e-4
/// at 1e4 in float32, and 1% in bfloat16.
Variable attention(const Variable& qkv_BT3C, int64_t heads, const at::Tensor& starts = {});

// Images (ops/conv.cc, pool.cc): x is [B, C, H, W]. The ops add `padding` positions on each side,
// which are zeros except in max_pool2d.
struct Conv2dOptions {
  Pair stride = 1, padding = 0, dilation = 1;
  int64_t groups =
      1;  ///< groups of channels, each of which sees only its own inputs; must divide C and O
};
/// Computes the cross-correlation, as torch does: weight [O, C / groups, kh, kw], bias [O] or
/// undefined -> [B, O, H', W'], where H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride)
/// + 1.
Variable conv2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv2dOptions& options = {});
/// Computes the gradient of conv2d with respect to x, whose shape is `sizes`, from dy [B, O, H',
/// W'].
Variable conv2d_input_grad(const Variable& dy, const Variable& weight, at::IntArrayRef sizes,
                           const Conv2dOptions& options = {});
/// Computes the gradient of conv2d with respect to the weight, whose shape is `sizes`.
Variable conv2d_weight_grad(const Variable& dy, const Variable& x, at::IntArrayRef sizes,
                            const Conv2dOptions& options = {});
/// Returns the maximum of each window. By default, the stride is the kernel's size. Padding must be
/// at most half a window. A padded position is never the maximum. With ceil_mode, the last window
/// may extend beyond the padding, as long as it begins in x or the padding before it. Throws if a
/// window lies completely in the padding.
Variable max_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride = std::nullopt,
                    Pair padding = 0, Pair dilation = 1, bool ceil_mode = false);
/// Returns the mean of each window. If count_include_pad is set, the zeros of the padding count;
/// otherwise, only positions of x count. With ceil_mode, the last window may extend beyond the
/// padding; positions beyond the padding never count.
Variable avg_pool2d(const Variable& x, Pair kernel, std::optional<Pair> stride = std::nullopt,
                    Pair padding = 0, bool ceil_mode = false, bool count_include_pad = true);
/// Computes the gradient of avg_pool2d with respect to x, whose shape is `sizes`.
Variable avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes, Pair kernel, Pair stride,
                             Pair padding, bool ceil_mode = false, bool count_include_pad = true);
/// Returns the means of out.h times out.w windows, which together cover x. The windows of row i of
/// the result begin at row floor(i H / out.h) of x and end before row ceil((i + 1) H / out.h);
/// columns are divided in the same way.
Variable adaptive_avg_pool2d(const Variable& x, Pair out);
/// Computes the gradient of adaptive_avg_pool2d with respect to x, whose shape is `sizes`.
Variable adaptive_avg_pool2d_backward(const Variable& dy, at::IntArrayRef sizes);

// Batch norm (ops/batch_norm.cc), Ioffe and Szegedy 2015: normalizes x [B, C, ...] over all dims
// except dim 1. Weight and bias are [C]; either may be undefined. Statistics are in float32 or
// wider; the result's dtype is chosen as for layer_norm.
struct BatchNormed {
  Variable y;
  at::Tensor mean, var;  ///< [C] of this batch, for running statistics; the variance is unbiased;
                         ///< both are undefined if x is empty
};
/// Normalizes with the statistics of the batch. Throws if there is only one value per channel.
BatchNormed batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                       double eps = 1e-5, std::optional<at::ScalarType> out = std::nullopt);
/// Normalizes with given statistics [C], which get no gradient.
Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const at::Tensor& mean, const at::Tensor& var, double eps = 1e-5,
                    std::optional<at::ScalarType> out = std::nullopt);

// Recurrent layers (ops/recurrent.cc, lstm.cc), with gates in torch's order. The cells compute in
// float32 or wider; the caller computes their matrix products.
/// Computes an LSTM step (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al.
/// 2000) from gates [B, 4 H] = x W_ih^T + h W_hh^T + b, in the order input, forget, cell, output,
/// and state c [B, H]. Returns the next h in the dtype of the gates, and the next c in the dtype of
/// c.
std::pair<Variable, Variable> lstm_cell(const Variable& gates, const Variable& c);
/// Computes all steps of an LSTM layer from x [T, B, C], W_ih [4 H, C], the bias [4 H], which may
/// be undefined, W_hh [4 H, H] and the states h and c [B, H] before the first step. With `reverse`,
/// the steps run from the last to the first. Returns h after each step [T, B, H] and the last c. On
/// CPUs, one op computes all steps if B is 16 or more and there are kernels for it. This op
/// computes each weight's gradient by one matrix product over all steps.
std::pair<Variable, Variable> lstm_layer(const Variable& x, const Variable& weight_ih,
                                         const Variable& bias, const Variable& weight_hh,
                                         const Variable& h, const Variable& c, bool reverse);
/// Computes a GRU step (Cho et al. 2014, in the form of cuDNN and torch) from gates x W_ih^T + b_ih
/// and h W_hh^T + b_hh [B, 3 H], in the order reset, update, new, and from h [B, H]. Returns the
/// next h in the dtype of h.
Variable gru_cell(const Variable& x_gates, const Variable& h_gates, const Variable& h);

// Losses (ops/loss.cc). They compute in float32 or wider.
/// Returns -log softmax(logits)[target], summed over the targets that are not `ignore_index` and
/// divided by `divisor` or, if `divisor` is 0, by the number of these targets. If all targets are
/// ignored, the loss is 0, whereas torch returns NaN. The values of ignored rows have no effect,
/// even if they are NaN or infinite. logits [N, V], targets int64 [N] -> [].
Variable cross_entropy(const Variable& logits_NV, const at::Tensor& targets_N, double divisor = 0,
                       int64_t ignore_index = -100);
/// Returns cross_entropy(linear(x, weight), targets, divisor, ignore_index). Where there are
/// kernels for it, the complete logits never exist: rows are processed in pieces, and forward
/// computes the gradients of x and the weight. x [N, C], weight [V, C], targets int64 [N] -> [].
Variable linear_cross_entropy(const Variable& x_NC, const Variable& weight_VC,
                              const at::Tensor& targets_N, double divisor = 0,
                              int64_t ignore_index = -100);
/// Returns the mean of (a - b)^2 over all elements.
Variable mse_loss(const Variable& a, const Variable& b);

}  // namespace lathe
