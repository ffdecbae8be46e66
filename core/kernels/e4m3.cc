#include "core/kernels/e4m3.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>

#include "core/kernels/e4m3_code.h"
#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/e4m3.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

// The following functions are plain loops, which the compiler vectorizes for each instruction set.

template <class T>
void pack_rows_as(const T* x, uint8_t* y, float* factors, int64_t begin, int64_t end, int64_t n) {
  for (int64_t r = begin; r < end; ++r) {
    const T* in = x + r * n;
    uint8_t* out = y + r * n;

    // The bits of absolute values, compared as integers, have the same order as the values. The
    // bits of infinity and NaN are larger than the bits of every number.
    uint32_t bits = 0;
    for (int64_t i = 0; i < n; ++i)
      bits = std::max(bits, std::bit_cast<uint32_t>(static_cast<float>(in[i])) & 0x7fffffffu);
    const auto largest = std::bit_cast<float>(bits);
    const E4m3Row row(largest);
    factors[r] = row.factor;
    if (!row.is_finite) {
      std::fill(out, out + n, uint8_t{0});
      continue;
    }
    for (int64_t i = 0; i < n; ++i) out[i] = row.code(static_cast<float>(in[i]));
  }
}

template <class T>
void unpack_rows_as(const uint8_t* x, const float* factors, T* y, int64_t begin, int64_t end,
                    int64_t n) {
  for (int64_t r = begin; r < end; ++r) {
    const float factor = factors[r];
    for (int64_t i = r * n; i < (r + 1) * n; ++i) y[i] = static_cast<T>(e4m3_value(x[i]) * factor);
  }
}

void pack_rows(const void* x, Element type, uint8_t* y, float* factors, int64_t begin, int64_t end,
               int64_t n) {
  const auto run = [&]<class T>(const T* in)
                       HWY_ATTR { pack_rows_as(in, y, factors, begin, end, n); };
  switch (type) {
    case Element::f32: return run(static_cast<const float*>(x));
    case Element::f64: return run(static_cast<const double*>(x));
    case Element::bf16: return run(static_cast<const c10::BFloat16*>(x));
    case Element::f16: return run(static_cast<const c10::Half*>(x));
  }
}

void unpack_rows(const uint8_t* x, const float* factors, void* y, Element type, int64_t begin,
                 int64_t end, int64_t n) {
  const auto run = [&]<class T>(T* out)
                       HWY_ATTR { unpack_rows_as(x, factors, out, begin, end, n); };
  switch (type) {
    case Element::f32: return run(static_cast<float*>(y));
    case Element::f64: return run(static_cast<double*>(y));
    case Element::bf16: return run(static_cast<c10::BFloat16*>(y));
    case Element::f16: return run(static_cast<c10::Half*>(y));
  }
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(pack_rows);
HWY_EXPORT(unpack_rows);

namespace {
/// Returns the smallest number of rows of n elements that is worth a thread.
int64_t rows_of_thread(int64_t n) { return std::max<int64_t>(1, (1 << 14) / n); }
}  // namespace

void pack_e4m3(const void* x, Element type, uint8_t* y, float* factors, int64_t rows, int64_t n) {
  parallel_for(0, rows, rows_of_thread(n), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(pack_rows)(x, type, y, factors, begin, end, n);
  });
}

void unpack_e4m3(const uint8_t* x, const float* factors, void* y, Element type, int64_t rows,
                 int64_t n) {
  parallel_for(0, rows, rows_of_thread(n), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(unpack_rows)(x, factors, y, type, begin, end, n);
  });
}

}  // namespace lathe
#endif
