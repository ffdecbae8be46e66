#include "core/kernels/epilogue.h"

#include "core/kernels/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/epilogue.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/activation-inl.h"
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

template <class T>
T* place(const Matrix& m, int64_t row, int64_t column) {
  return static_cast<T*>(const_cast<void*>(m.at(row, column)));
}

template <class Out, class Residual>
void finish_as(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
               int64_t columns, const Epilogue& e) {
  const float* bias = e.bias == nullptr ? nullptr : e.bias + column;
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = block + r * stride;
    Out* out = place<Out>(e.out, row + r, column);
    Out* before = e.before.data == nullptr ? nullptr : place<Out>(e.before, row + r, column);
    const Out* gate = e.gate.data == nullptr ? nullptr : place<Out>(e.gate, row + r, column);
    const Residual* residual =
        e.residual.data == nullptr ? nullptr : place<Residual>(e.residual, row + r, column);
    for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
      V v = part(in + i);
      if (bias != nullptr) v = hn::Add(v, part(bias + i));
      if (e.activation == Activation::gelu) {
        if (before != nullptr) part(v, before + i);
        v = gelu_of(v);
      } else if (e.activation == Activation::swiglu) {
        if (before != nullptr) part(v, before + i);
        v = hn::Mul(silu_of(part(gate + i)), v);
      }
      if (residual != nullptr) v = hn::Add(v, part(residual + i));
      part(v, out + i);
    });
  }
}

void finish(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
            int64_t columns, const Epilogue& e) {
  with_elements(e.out.type, e.residual.type, [&](auto out, auto residual) HWY_ATTR {
    finish_as<decltype(out), decltype(residual)>(block, stride, row, column, rows, columns, e);
  });
}

void row_sums(Matrix a, int64_t rows, int64_t columns, float* sums) {
  with_element(a.type, [&](auto type) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      const auto* in = place<const decltype(type)>(a, r, 0);
      V sum = set(0);
      for_vectors(columns,
                  [&](int64_t i, auto part) HWY_ATTR { sum = hn::Add(sum, part(in + i)); });
      sums[r] += sum_of(sum);
    }
  });
}

const char* set_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(finish);
HWY_EXPORT(row_sums);
HWY_EXPORT(set_name);

const char* vector_set() { return HWY_DYNAMIC_DISPATCH(set_name)(); }

void finish_block(const float* block, int64_t stride, int64_t row, int64_t column, int64_t rows,
                  int64_t columns, const Epilogue& e) {
  HWY_DYNAMIC_DISPATCH(finish)(block, stride, row, column, rows, columns, e);
}
void add_row_sums(Matrix a, int64_t rows, int64_t columns, float* sums) {
  HWY_DYNAMIC_DISPATCH(row_sums)(a, rows, columns, sums);
}

}  // namespace lathe
#endif
