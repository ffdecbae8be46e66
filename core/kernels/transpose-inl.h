// Transposes a few columns of many rows in registers. This file is included in the same way as
// simd-inl.h.
#if defined(LATHE_CORE_KERNELS_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_CORE_KERNELS_TRANSPOSE_INL_H
#undef LATHE_CORE_KERNELS_TRANSPOSE_INL_H
#else
#define LATHE_CORE_KERNELS_TRANSPOSE_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// The number of blocks of 4 units (of 4 bytes each) in a vector.
constexpr int64_t transposed_blocks = HWY_HAVE_SCALABLE ? 1 : HWY_MAX_BYTES / 16;
using Units = hn::FixedTag<uint32_t, 4 * transposed_blocks>;

/// Returns a vector whose block b of 4 units is loaded from `in` + b * `step` bytes.
template <class D32>
HWY_INLINE hn::Vec<D32> gather_blocks(D32 d, const char* in, int64_t step) {
  if constexpr (hn::MaxLanes(D32()) <= 4) {
    return hn::LoadU(d, reinterpret_cast<const uint32_t*>(in));
  } else {
    constexpr auto upper = static_cast<int64_t>(hn::MaxLanes(D32())) / 8;
    const hn::Half<D32> half;
    return hn::Combine(d, gather_blocks(half, in + upper * step, step),
                       gather_blocks(half, in, step));
  }
}

/// Four columns of a matrix. Each vector has one unit of 4 bytes for each row.
struct Columns {
  hn::Vec<Units> v0, v1, v2, v3;
};
/// Loads columns 0 to 3 of rows that are `stride` bytes apart. row(r) reads row 4 b + r into block
/// b of a vector, so that a transpose within the blocks turns each vector into a column.
HWY_INLINE Columns load_columns(const char* in, int64_t stride) {
  const Units d;
  const hn::RepartitionToWide<Units> d2;
  const auto row = [&](int64_t r)
                       HWY_ATTR { return gather_blocks(d, in + r * stride, 4 * stride); };
  const auto a = row(0), b = row(1), c = row(2), e = row(3);
  const auto ab0 = hn::BitCast(d2, hn::InterleaveLower(d, a, b)),
             ab1 = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
  const auto ce0 = hn::BitCast(d2, hn::InterleaveLower(d, c, e)),
             ce1 = hn::BitCast(d2, hn::InterleaveUpper(d, c, e));
  return {hn::BitCast(d, hn::InterleaveLower(d2, ab0, ce0)),
          hn::BitCast(d, hn::InterleaveUpper(d2, ab0, ce0)),
          hn::BitCast(d, hn::InterleaveLower(d2, ab1, ce1)),
          hn::BitCast(d, hn::InterleaveUpper(d2, ab1, ce1))};
}
#endif

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
