// Linear layers.
#pragma once

#include <cstdint>

#include "autograd/ops.h"
#include "autograd/tensor_cut.h"
#include "core/mode.h"
#include "dist/sequence_ranks.h"
#include "nn/module.h"

namespace lathe {

/// Computes y = x W^T + b, plus lora_scale (x A^T) B^T if the layer has an adapter. x [..., in] ->
/// [..., out].
///
/// If the layer has magnitudes m, each row of the weight W + lora_scale B A is scaled to the norm
/// that m holds for the row. The gradient treats the rows' norms before scaling as constants. Liu
/// et al. 2024, "DoRA".
///
/// If tensor ranks have parts of the weight (dist/tensor_ranks.h), `out` or `in` is the size of
/// this rank's part. A layer that is cut along its outputs takes the complete x and returns a part
/// of y. A layer that is cut along its inputs takes a part of x and returns the complete y. An
/// adapter's B is cut if the outputs are cut, and the adapter's A is cut if the inputs are cut.
struct Linear {
  Variable weight, bias;  ///< [out, in]; [out], undefined if there is none
  Role role = Role::weight;
  /// A [rank, in] and B [out, rank]; undefined without an adapter. Hu et al. 2021, "LoRA".
  Variable lora_a, lora_b;
  Variable lora_m;        ///< m [out], float32; undefined without magnitudes
  double lora_scale = 1;  ///< alpha / rank

  Linear() = default;
  Linear(int64_t in, int64_t out, bool with_bias, const Role& role = Role::weight);
  /// Computes y. If `residual` [..., out] is given, adds it to y, and returns the dtype of
  /// `residual`.
  Variable operator()(const Variable& x, const Variable& residual = {}) const;
  /// Returns f(x). `f` uses the weight in a fused op, which replaces a call of this layer. If
  /// tensor ranks have parts of the outputs, the backward pass sums the gradient of `x` over these
  /// ranks; see with_input_of_cut_outputs() in dist/sequence_ranks.h.
  template <class F>
  auto with_input(const Variable& x, const F& f) const {
    return is_cut(weight, 0) ? with_input_of_cut_outputs(x, f) : f(x);
  }
  /// Returns whether calls of this layer add an adapter's term: the layer has an adapter, and
  /// Mode::adapters does not disable it.
  bool has_adapter() const { return lora_a.defined() && mode().adapters; }
  /// Adds an adapter whose matrices have the device and dtype of `options`, and are zero until they
  /// are initialized. The matrices have the sizes of the complete layer, even if the weight is a
  /// part.
  void add_adapter(int64_t rank, double alpha, at::TensorOptions options = {});
  /// Adds magnitudes to the adapter, which must exist. The magnitudes begin as the norms of the
  /// rows of W, and are trained like the adapter. If the outputs are cut, the magnitudes are this
  /// rank's part. If the inputs are cut, this call and every later call of the layer are
  /// collectives of the tensor ranks.
  void add_magnitudes();
  /// Merges the adapter, which must exist, into the float32 weight, and drops the adapter. With
  /// magnitudes, also scales the rows of the weight.
  void merge_adapter();
  void visit(Visit& v) {
    v("weight", weight, role);
    v("bias", bias, Role::bias);
    v("lora_a", lora_a, Role::lora_a);
    v("lora_b", lora_b, Role::lora_b);
    v("lora_m", lora_m, Role::lora_m);
  }

 private:
  /// Returns the adapter's term: lora_scale (x A^T) B^T.
  Variable adapted(const Variable& x) const;
  /// Returns the weight W in float32. [out, in]
  at::Tensor plain_weight() const;
  /// Returns W + lora_scale B A in float32. [out, in]
  at::Tensor adapted_weight() const;
  /// Returns the Euclidean norm of each row of a tensor of the weight's sizes, at least 1e-30, so
  /// that float32 can divide by it. [out]
  at::Tensor row_norms(const at::Tensor& w) const;
};

}  // namespace lathe
