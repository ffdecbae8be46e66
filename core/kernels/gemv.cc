#include "core/kernels/gemv.h"

#include <algorithm>
#include <type_traits>

#include "core/kernels/gemm.h"
#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemv.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/gemv-inl.h"
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// Returns whether the loops below are compiled for this instruction set.
bool few_rows_compiled() { return HWY_TARGET != HWY_SCALAR && HWY_HAVE_SCALABLE == 0; }

/// Writes the products of rows [0, rows) of w and x [m][k] to `out`. After these rows, `beyond`
/// more rows of w follow. m is 1, 2, 4 or 8.
void few_rows_block(Matrix w, int64_t rows, int64_t k, int64_t step, const float* x, int64_t m,
                    float* out, int64_t out_stride, void* space, int64_t beyond) {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  with_few(m, [&](auto count) HWY_ATTR {
    constexpr int M = decltype(count)::value;
    if (w.type == Element::f32)
      few_rows_of<float, M>(static_cast<const float*>(w.data), w.stride, rows, k, step, x, k, out,
                            out_stride, static_cast<float*>(space), beyond);
    else
      few_rows_of<c10::BFloat16, M>(static_cast<const c10::BFloat16*>(w.data), w.stride, rows, k,
                                    step, x, k, out, out_stride, static_cast<c10::BFloat16*>(space),
                                    beyond);
  });
#else
  (void)w, (void)rows, (void)k, (void)step, (void)x, (void)m, (void)out, (void)out_stride,
      (void)space, (void)beyond;
#endif
}

/// Returns the scale of a block.
HWY_INLINE float scale_of(const QuantizedView& w, int64_t block) {
  if (w.scale_scales == nullptr) return static_cast<const float*>(w.scales)[block];
  return static_cast<float>(static_cast<const int8_t*>(w.scales)[block]) *
             w.scale_scales[block / 256] +
         w.scale_mean;
}

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
/// Calls f(i, levels) for each vector of levels in a block of 64 elements. The vector's first lane
/// belongs to element i of x. Elements with 8-bit codes keep their order. For 4-bit codes, elements
/// at even positions come before elements at odd positions, and x must have that order (see
/// gemv_quantized).
template <class F>
HWY_INLINE void block_levels(const QuantizedView& w, int64_t block, F&& f) {
  constexpr int64_t L = hn::MaxLanes(D());
  const hn::Rebind<int32_t, D> wide;
  // Codes of 8 bits are the levels themselves.
  if (w.levels == nullptr) {
    const auto* codes = static_cast<const int8_t*>(w.codes) + block * 64;
    const hn::Rebind<int8_t, D> narrow;
    for (int64_t i = 0; i < 64; i += L)
      f(i, hn::ConvertTo(D(), hn::PromoteTo(wide, hn::LoadU(narrow, codes + i))));
    return;
  }

  // For codes of 4 bits, look up one of 16 levels. The levels fill one vector or several vectors.
  // If there are several vectors, the upper bits of a code select one of them.
  const auto* codes = static_cast<const uint8_t*>(w.codes) + block * 32;
  const hn::Rebind<uint8_t, D> narrow;
  const auto level = [&](auto code) HWY_ATTR {  // a code is 0 to 15
    if constexpr (L == 16) {
      return hn::TableLookupLanes(load(w.levels), hn::IndicesFromVec(D(), code));
    } else {
      const auto inside = hn::And(code, hn::Set(wide, static_cast<int32_t>(L - 1)));
      V y = hn::TableLookupLanes(load(w.levels), hn::IndicesFromVec(D(), inside));
      for (int64_t t = L; t < 16; t += L) {
        const V other = hn::TableLookupLanes(load(w.levels + t), hn::IndicesFromVec(D(), inside));
        y = hn::IfThenElse(
            hn::RebindMask(D(), hn::Gt(code, hn::Set(wide, static_cast<int32_t>(t - 1)))), other,
            y);
      }
      return y;
    }
  };

  // The first of two codes is in the upper half of a byte.
  for (int64_t i = 0; i < 32; i += L) {
    const auto both = hn::PromoteTo(wide, hn::LoadU(narrow, codes + i));
    f(i, level(hn::ShiftRight<4>(both)));
    f(32 + i, level(hn::And(both, hn::Set(wide, 15))));
  }
}

/// Computes the products of R rows of w, of which `row` is the first, with M rows of x.
template <int M, int R>
HWY_INLINE void quantized_dots(const QuantizedView& w, int64_t row, int64_t blocks, const float* x,
                               float* out, int64_t out_stride) {
  V sum[M * R];
  for (V& s : sum) s = set(0);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int r = 0; r < R; ++r) {
      const int64_t block = (row + r) * blocks + b;
      const int64_t bytes = w.levels == nullptr ? 64 : 32;
      if (bytes == 64 || b % 2 == 0)
        hwy::Prefetch(static_cast<const char*>(w.codes) + (block + R * blocks) * bytes);
      V part[M];
      for (V& p : part) p = set(0);
      block_levels(w, block, [&](int64_t i, V level) HWY_ATTR {
        for (int m = 0; m < M; ++m)
          part[m] = hn::MulAdd(level, load(x + (m * blocks + b) * 64 + i), part[m]);
      });
      const V scale = set(scale_of(w, block));
      for (int m = 0; m < M; ++m) sum[m * R + r] = hn::MulAdd(part[m], scale, sum[m * R + r]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) out[m * out_stride + r] = sum_of(sum[m * R + r]);
  }
}
#endif

void quantized_block(const QuantizedView& w, int64_t row, int64_t rows, int64_t blocks,
                     const float* x, int64_t m, float* out, int64_t out_stride) {
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  with_few(m, [&](auto count) HWY_ATTR {
    constexpr int M = decltype(count)::value, R = M == 1 ? 4 : 1;
    int64_t r = 0;
    for (; r + R <= rows; r += R) quantized_dots<M, R>(w, row + r, blocks, x, out + r, out_stride);
    for (; r < rows; ++r) quantized_dots<M, 1>(w, row + r, blocks, x, out + r, out_stride);
  });
#else
  (void)w, (void)row, (void)rows, (void)blocks, (void)x, (void)m, (void)out, (void)out_stride;
#endif
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(few_rows_compiled);
HWY_EXPORT(few_rows_block);
HWY_EXPORT(quantized_block);

namespace {

constexpr int64_t task_rows = 64;  // rows of the matrix in a task, which computes one column of the
                                   // result for each of these rows

/// Returns m rounded up to a number for which kernels are compiled.
int64_t padded(int64_t m) { return m <= 2 ? m : m <= 4 ? 4 : max_gemv_rows; }

/// Writes a [m, k] to x in float32, followed by rows of zeros up to padded(m) rows.
void widen_few(Matrix a, int64_t m, int64_t k, float* x) {
  widen(a, m, k, x, k);
  std::fill_n(x + m * k, (padded(m) - m) * k, 0.0f);
}

}  // namespace

bool gemv_ready(Element a, Element b, int64_t m) {
#ifdef __x86_64__
  return m <= max_gemv_rows && gemm_possible(a) && (b == Element::f32 || b == Element::bf16) &&
         HWY_DYNAMIC_DISPATCH(few_rows_compiled)();
#else
  (void)a, (void)b, (void)m;
  return false;
#endif
}

void gemv_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, int64_t step, const Epilogue& e) {
  const int64_t rows = padded(m);
  const c10::DataPtr wide = c10::GetCPUAllocator()->allocate(static_cast<size_t>(rows * k) * 4);
  auto* x = static_cast<float*>(wide.get());
  widen_few(a, m, k, x);
  constexpr int64_t most_lanes = 16;
  const int64_t space = round_up(most_lanes * k * bytes_of(b.type), 64);
  const Scratch scratch(space + rows * task_rows * 4);
  const auto run = [&](int64_t task) {
    char* mine = scratch.mine();
    auto* block = reinterpret_cast<float*>(mine + space);
    const int64_t row = task * task_rows, count = std::min(task_rows, n - row);
    HWY_DYNAMIC_DISPATCH(few_rows_block)
    ({b.at(row, 0), b.stride, b.type}, count, k, step, x, rows, block, task_rows, mine,
     n - row - count);
    finish_block(block, task_rows, 0, row, m, count, e);
  };
  // The rows of a thread are consecutive, so that the thread prefetches rows that it will read
  // itself.
  parallel_for(0, divide_up(n, task_rows), std::max<int64_t>(1, (1 << 15) / (task_rows * k)),
               [&](int64_t begin, int64_t end) {
                 for (; begin < end; ++begin) run(begin);
               });
}

void gemv_quantized(Matrix a, const QuantizedView& b, int64_t m, int64_t n, int64_t k,
                    const Epilogue& e) {
  const int64_t rows = padded(m), blocks = k / 64;
  const c10::DataPtr wide = c10::GetCPUAllocator()->allocate(static_cast<size_t>(rows * k) * 4);
  auto* x = static_cast<float*>(wide.get());
  widen_few(a, m, k, x);

  // Put x into the order of block_levels(): first the even positions of each block, then the odd
  // positions.
  if (b.levels != nullptr) {
    for (int64_t at = 0; at < rows * k; at += 64) {
      float pairs[64];
      for (int64_t i = 0; i < 32; ++i) {
        pairs[i] = x[at + 2 * i];
        pairs[32 + i] = x[at + 2 * i + 1];
      }
      std::copy_n(pairs, 64, x + at);
    }
  }

  const Scratch scratch(rows * task_rows * 4);
  parallel_for(0, divide_up(n, task_rows), std::max<int64_t>(1, (1 << 15) / (task_rows * k)),
               [&](int64_t begin, int64_t end) {
                 auto* block = reinterpret_cast<float*>(scratch.mine());
                 for (; begin < end; ++begin) {
                   const int64_t row = begin * task_rows, count = std::min(task_rows, n - row);
                   HWY_DYNAMIC_DISPATCH(quantized_block)(b, row, count, blocks, x, rows, block,
                                                         task_rows);
                   finish_block(block, task_rows, 0, row, m, count, e);
                 }
               });
}

}  // namespace lathe
#endif
