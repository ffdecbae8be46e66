#include "core/kernels/activation.h"

#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/activation.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/activation-inl.h"
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

void gelu_range(const void* x, void* y, Element type, int64_t begin, int64_t end) {
  with_element(type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    const T* in = static_cast<const T*>(x) + begin;
    T* out = static_cast<T*>(y) + begin;
    for_vectors(end - begin,
                [&](int64_t i, auto part) HWY_ATTR { part(gelu_of(part(in + i)), out + i); });
  });
}

void swiglu_product_range(const void* a_, const void* b_, void* y, Element type, int64_t begin,
                          int64_t end) {
  with_element(type, [&](auto t) HWY_ATTR {
    using T = decltype(t);
    const T* a = static_cast<const T*>(a_) + begin;
    const T* b = static_cast<const T*>(b_) + begin;
    T* out = static_cast<T*>(y) + begin;
    for_vectors(end - begin, [&](int64_t i, auto part) HWY_ATTR {
      part(hn::Mul(silu_of(part(a + i)), part(b + i)), out + i);
    });
  });
}

template <class T>
void gelu_backward_as(const void* x_, const void* dy_, void* dx_, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(x_) + begin;
  const T* dy = static_cast<const T*>(dy_) + begin;
  T* dx = static_cast<T*>(dx_) + begin;
  for_vectors(end - begin, [&](int64_t i, auto part) HWY_ATTR {
    part(hn::Mul(part(dy + i), gelu_grad(part(x + i))), dx + i);
  });
}
void gelu_backward_range(const void* x, const void* dy, void* dx, Element type, int64_t begin,
                         int64_t end) {
  with_element(type,
               [&](auto t) HWY_ATTR { gelu_backward_as<decltype(t)>(x, dy, dx, begin, end); });
}

template <class T>
void swiglu_as(const void* x, void* y, int64_t begin, int64_t end, int64_t h) {
  for (int64_t r = begin; r < end; ++r) {
    const T* a = static_cast<const T*>(x) + r * 2 * h;
    T* out = static_cast<T*>(y) + r * h;
    for_vectors(h, [&](int64_t i, auto part)
                       HWY_ATTR { part(hn::Mul(silu_of(part(a + i)), part(a + h + i)), out + i); });
  }
}
void swiglu_rows(const void* x, void* y, Element type, int64_t begin, int64_t end, int64_t h) {
  with_element(type, [&](auto t) HWY_ATTR { swiglu_as<decltype(t)>(x, y, begin, end, h); });
}

template <class T>
void swiglu_backward_as(const void* a_, const void* b_, const void* dy, void* da_, void* db_,
                        int64_t begin, int64_t end, int64_t h, int64_t stride) {
  for (int64_t r = begin; r < end; ++r) {
    const T* a = static_cast<const T*>(a_) + r * stride;
    const T* b = static_cast<const T*>(b_) + r * stride;
    const T* up = static_cast<const T*>(dy) + r * h;
    T* da = static_cast<T*>(da_) + r * stride;
    T* db = static_cast<T*>(db_) + r * stride;
    for_vectors(h, [&](int64_t i, auto part) HWY_ATTR {
      const V v = part(a + i), g = part(up + i);
      part(hn::Mul(hn::Mul(g, part(b + i)), silu_grad(v)), da + i);
      part(hn::Mul(g, silu_of(v)), db + i);
    });
  }
}
void swiglu_backward_rows(const void* a, const void* b, const void* dy, void* da, void* db,
                          Element type, int64_t begin, int64_t end, int64_t h, int64_t stride) {
  with_element(type, [&](auto t) HWY_ATTR {
    swiglu_backward_as<decltype(t)>(a, b, dy, da, db, begin, end, h, stride);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(gelu_range);
HWY_EXPORT(swiglu_product_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(swiglu_rows);
HWY_EXPORT(swiglu_backward_rows);

namespace {
constexpr int64_t grain = 1 << 13;  // the smallest number of elements that is worth a thread
}

void gelu_forward(const void* x, void* y, Element type, int64_t n) {
  parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_range)(x, y, type, begin, end);
  });
}
void swiglu_product(const void* a, const void* b, void* y, Element type, int64_t n) {
  parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_product_range)(a, b, y, type, begin, end);
  });
}
void gelu_backward(const void* x, const void* dy, void* dx, Element type, int64_t n) {
  parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)(x, dy, dx, type, begin, end);
  });
}
void swiglu_forward(const void* x, void* y, Element type, int64_t rows, int64_t h) {
  parallel_for(0, rows, divide_up(grain, h), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_rows)(x, y, type, begin, end, h);
  });
}
void swiglu_backward(const void* a, const void* b, const void* dy, void* da, void* db, Element type,
                     int64_t rows, int64_t h, int64_t stride) {
  parallel_for(0, rows, divide_up(grain, h), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_backward_rows)(a, b, dy, da, db, type, begin, end, h, stride);
  });
}

}  // namespace lathe
#endif
