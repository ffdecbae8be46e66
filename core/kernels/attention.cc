#include "core/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/kernels/product.h"
#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

/// One block of the online softmax. scores [rows, columns], `stride` apart, of queries from q0 and keys from k0; p
/// takes exp(score scale - most) with zeros where the mask is and in the columns up to `width`; most and sum [rows] go
/// on from the blocks before, and so does the accumulated output [rows, wide].
template <class T>
void softmax_as(const float* scores, int64_t stride, int64_t rows, int64_t columns, int64_t width, int64_t q0,
                int64_t k0, float scale, T* p, float* most, float* sum, float* acc, int64_t wide) {
  const V s = set(scale), low = set(-INFINITY);
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = scores + r * stride;
    T* out = p + r * width;
    const int64_t seen = std::min(columns, q0 + r - k0 + 1);  // keys up to the query itself
    V top = low;
    for_vectors(seen, [&](int64_t i, auto part) HWY_ATTR { top = hn::Max(top, part.keep_or(part(in + i), low)); });
    const float before = most[r], now = std::max(before, max_of(top) * scale);
    const V m = set(now);
    V total = set(0);
    for_vectors(seen, [&](int64_t i, auto part) HWY_ATTR {
      const V e = part.keep(exp_of(hn::MulSub(part(in + i), s, m)));
      total = hn::Add(total, e);
      part(e, out + i);
    });
    std::fill(out + seen, out + width, T(0.0f));
    const float kept = before == -INFINITY ? 0.0f : std::exp(before - now);
    most[r] = now;
    sum[r] = sum[r] * kept + sum_of(total);
    if (kept == 1.0f || k0 == 0) continue;
    const V factor = set(kept);
    float* a = acc + r * wide;
    for_vectors(wide, [&](int64_t i, auto part) HWY_ATTR { part(hn::Mul(part(a + i), factor), a + i); });
  }
}
void softmax_block(const float* scores, int64_t stride, int64_t rows, int64_t columns, int64_t width, int64_t q0,
                   int64_t k0, float scale, void* p, Element type, float* most, float* sum, float* acc, int64_t wide) {
  with_elements(type, type, [&](auto t, auto) HWY_ATTR {
    softmax_as(scores, stride, rows, columns, width, q0, k0, scale, static_cast<decltype(t)*>(p), most, sum, acc, wide);
  });
}

/// out[r] = acc[r] / sum[r] (sum null: acc), rows x columns.
void write_rows_of(const float* acc, int64_t wide, int64_t rows, int64_t columns, const float* sum, Matrix out) {
  with_elements(out.type, out.type, [&](auto t, auto) HWY_ATTR {
    for (int64_t r = 0; r < rows; ++r) {
      auto* to = static_cast<decltype(t)*>(const_cast<void*>(out.at(r, 0)));
      const V factor = set(sum == nullptr ? 1.0f : 1.0f / sum[r]);
      for_vectors(columns,
                  [&](int64_t i, auto part) HWY_ATTR { part(hn::Mul(part(acc + r * wide + i), factor), to + i); });
    }
  });
}

/// delta[r] = sum over the columns of a b.
void dot_rows(Matrix a, Matrix b, int64_t rows, int64_t columns, float* delta) {
  with_elements(a.type, a.type, [&](auto t, auto) HWY_ATTR {
    using T = decltype(t);
    for (int64_t r = 0; r < rows; ++r) {
      V sum = set(0);
      for_vectors(columns, [&](int64_t i, auto part) HWY_ATTR {
        sum = hn::MulAdd(part(static_cast<const T*>(a.at(r, 0)) + i), part(static_cast<const T*>(b.at(r, 0)) + i), sum);
      });
      delta[r] = sum_of(sum);
    }
  });
}

/// Transposed blocks [keys, queries], `stride` apart: from scores and dP to P and dS = P (dP - delta) scale. Rows of
/// the results are `width` long, zero beyond the queries and where the mask is.
template <class T>
void slopes_as(const float* scores, const float* dp, int64_t stride, int64_t keys, int64_t queries, int64_t width,
               int64_t k0, int64_t q0, float scale, const float* lse, const float* delta, T* p, T* ds) {
  const V s = set(scale);
  for (int64_t r = 0; r < keys; ++r) {
    const int64_t first = std::min(queries, std::max<int64_t>(0, k0 + r - q0));  // queries before the key see nothing
    T* to_p = p + r * width;
    T* to_ds = ds + r * width;
    for_vectors(queries, [&](int64_t i, auto part) HWY_ATTR {
      const V e = part.keep(exp_of(hn::MulSub(part(scores + r * stride + i), s, part(lse + i))));
      const V d = hn::Mul(hn::Mul(e, hn::Sub(part(dp + r * stride + i), part(delta + i))), s);
      part(e, to_p + i);
      part(d, to_ds + i);
    });
    for (T* row : {to_p, to_ds}) {
      std::fill_n(row, first, T(0.0f));
      std::fill(row + queries, row + width, T(0.0f));
    }
  }
}
void slopes_block(const float* scores, const float* dp, int64_t stride, int64_t keys, int64_t queries, int64_t width,
                  int64_t k0, int64_t q0, float scale, const float* lse, const float* delta, void* p, void* ds,
                  Element type) {
  with_elements(type, type, [&](auto t, auto) HWY_ATTR {
    using T = decltype(t);
    slopes_as(scores, dp, stride, keys, queries, width, k0, q0, scale, lse, delta, static_cast<T*>(p),
              static_cast<T*>(ds));
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(softmax_block);
HWY_EXPORT(write_rows_of);
HWY_EXPORT(dot_rows);
HWY_EXPORT(slopes_block);

namespace {

constexpr int64_t block = 64;  // queries, and keys, at a time

/// One head of one sample.
struct Head {
  Head(const AttentionShape& s, Element type, int64_t index) {
    const int64_t b = index / s.heads, h = index % s.heads, c = s.heads * s.width;
    packed = b * s.time * 3 * c + h * s.width;
    joined = b * s.time * c + h * s.width;
    channels = c;
    element = type;
  }
  /// q, k, v for i = 0, 1, 2.
  Matrix part(const void* qkv, int64_t i) const { return at(qkv, packed + i * channels, 3 * channels); }
  Matrix rows(const void* out) const { return at(out, joined, channels); }

 private:
  Matrix at(const void* data, int64_t offset, int64_t stride) const {
    return {Matrix{data, 0, element}.at(0, offset), stride, element};
  }
  int64_t packed, joined, channels;
  Element element;
};

Matrix below(Matrix m, int64_t row) { return {m.at(row, 0), m.stride, m.type}; }

/// A head's rows [time, width], packed block by block as right factors.
class Packed {
 public:
  /// transposed: of [width, rows of the block], else of [rows of the block, width].
  Packed(const AttentionShape& s, Element type, bool transposed)
      : shape_(s), type_(type), transposed_(transposed), wide_(round_up(transposed ? block : s.width, 16)) {}
  /// float32 that is not transposed is read where it is.
  bool copied() const { return transposed_ || type_ != Element::f32; }
  int64_t bytes() const {
    const int64_t rows = transposed_ ? packed_depth(shape_.width, type_) : block;
    return copied() ? divide_up(shape_.time, block) * rows * wide_ * bytes_of(type_) : 0;
  }
  void fill(Matrix from, char* to) {
    from_ = from, at_ = to;
    if (!copied()) return;
    for (int64_t t = 0; t < shape_.time; t += block) {
      const int64_t n = std::min(block, shape_.time - t);
      void* place = const_cast<void*>(block_at(t).data);
      if (transposed_)
        pack_right_transposed(below(from, t), shape_.width, n, wide_, place);
      else
        pack_right(below(from, t), n, shape_.width, wide_, place);
    }
  }
  /// The block that begins at row t.
  Matrix block_at(int64_t t) const {
    if (!copied()) return below(from_, t);
    const int64_t rows = transposed_ ? packed_depth(shape_.width, type_) : block;
    return {at_ + t / block * rows * wide_ * bytes_of(type_), wide_, type_};
  }

 private:
  AttentionShape shape_;
  Element type_;
  bool transposed_;
  int64_t wide_;
  Matrix from_{};
  char* at_ = nullptr;
};

struct ForwardSpace {
  ForwardSpace(const AttentionShape& s, Element type, Packed& k, Packed& v, char* base) {
    Carver c(base);
    keys = c.take(k.bytes());
    values = c.take(v.bytes());
    scores = c.take<float>(block * block);
    p = c.take(block * block * bytes_of(type));
    most = c.take<float>(block);
    sum = c.take<float>(block);
    acc = c.take<float>(block * round_up(s.width, 16));
    used = c.used();
  }
  char *keys, *values, *p;
  float *scores, *most, *sum, *acc;
  int64_t used;
};

struct BackwardSpace {
  BackwardSpace(const AttentionShape& s, Element type, Packed (&packs)[5], char* base) {
    Carver c(base);
    for (int i = 0; i < 5; ++i) packed[i] = c.take(packs[i].bytes());
    const int64_t wide = round_up(s.width, 16);
    scores = c.take<float>(block * block);
    dp = c.take<float>(block * block);
    p = c.take(block * block * bytes_of(type));
    ds = c.take(block * block * bytes_of(type));
    ds_rows = c.take(block * block * bytes_of(type));
    delta = c.take<float>(s.time);
    dq = c.take<float>(s.time * wide);
    dk = c.take<float>(block * wide);
    dv = c.take<float>(block * wide);
    used = c.used();
  }
  char *packed[5], *p, *ds, *ds_rows;
  float *scores, *dp, *delta, *dq, *dk, *dv;
  int64_t used;
};

}  // namespace

bool attention_ready(const AttentionShape& s, Element type) {
  return product_ready(type) && (type == Element::f32 || s.width % 2 == 0);
}

void attention_forward(const AttentionShape& s, Element type, const void* qkv, void* out, float* lse) {
  const Packed shape_k(s, type, true), shape_v(s, type, false);
  Packed k0 = shape_k, v0 = shape_v;
  const Scratch scratch(ForwardSpace(s, type, k0, v0, nullptr).used);
  const int64_t wide = round_up(s.width, 16);
  const auto run = [&](int64_t index) {
    Packed keys = shape_k, values = shape_v;
    const ForwardSpace w(s, type, keys, values, scratch.mine());
    const Head head(s, type, index);
    const Matrix q = head.part(qkv, 0), y = head.rows(out);
    keys.fill(head.part(qkv, 1), w.keys);
    values.fill(head.part(qkv, 2), w.values);
    for (int64_t i = 0; i < s.time; i += block) {
      const int64_t rows = std::min(block, s.time - i);
      std::fill_n(w.most, rows, -INFINITY);
      std::fill_n(w.sum, rows, 0.0f);
      for (int64_t j = 0; j <= i; j += block) {
        const int64_t columns = std::min(block, s.time - j), depth = packed_depth(columns, type);
        small_product(below(q, i), keys.block_at(j), rows, round_up(columns, 16), s.width, w.scores, block, false);
        HWY_DYNAMIC_DISPATCH(softmax_block)
        (w.scores, block, rows, columns, depth, i, j, s.scale, w.p, type, w.most, w.sum, w.acc, wide);
        const int64_t n = values.copied() ? wide : s.width;
        small_product({w.p, depth, type}, values.block_at(j), rows, n, depth, w.acc, wide, j > 0);
      }
      HWY_DYNAMIC_DISPATCH(write_rows_of)(w.acc, wide, rows, s.width, w.sum, below(y, i));
      for (int64_t r = 0; r < rows; ++r) lse[index * s.time + i + r] = w.most[r] + std::log(w.sum[r]);
    }
  };
  parallel_tasks(s.batch * s.heads, run, [&] { release_products(type); });
}

void attention_backward(const AttentionShape& s, Element type, const void* qkv, const void* out, const void* dout,
                        const float* lse, void* dqkv) {
  // q and dout both ways, and k for dq.
  const Packed across(s, type, true), along(s, type, false);
  Packed shapes[5] = {across, across, along, along, along};
  const Scratch scratch(BackwardSpace(s, type, shapes, nullptr).used);
  const int64_t wide = round_up(s.width, 16);
  const auto dispatch_rows = HWY_DYNAMIC_DISPATCH(write_rows_of);
  const auto run = [&](int64_t index) {
    Packed packs[5] = {across, across, along, along, along};
    auto& [q_across, dy_across, q_along, dy_along, k_along] = packs;
    const BackwardSpace w(s, type, packs, scratch.mine());
    const Head head(s, type, index);
    const Matrix q = head.part(qkv, 0), k = head.part(qkv, 1), v = head.part(qkv, 2), dy = head.rows(dout);
    const float* row_lse = lse + index * s.time;
    q_across.fill(q, w.packed[0]);
    dy_across.fill(dy, w.packed[1]);
    q_along.fill(q, w.packed[2]);
    dy_along.fill(dy, w.packed[3]);
    k_along.fill(k, w.packed[4]);
    HWY_DYNAMIC_DISPATCH(dot_rows)(dy, head.rows(out), s.time, s.width, w.delta);
    const int64_t n = q_along.copied() ? wide : s.width;
    for (int64_t j = 0; j < s.time; j += block) {
      const int64_t keys = std::min(block, s.time - j);
      for (int64_t i = j; i < s.time; i += block) {
        const int64_t queries = std::min(block, s.time - i), depth = packed_depth(queries, type);
        const int64_t columns = round_up(queries, 16);
        small_product(below(k, j), q_across.block_at(i), keys, columns, s.width, w.scores, block, false);
        small_product(below(v, j), dy_across.block_at(i), keys, columns, s.width, w.dp, block, false);
        HWY_DYNAMIC_DISPATCH(slopes_block)
        (w.scores, w.dp, block, keys, queries, depth, j, i, s.scale, row_lse + i, w.delta + i, w.p, w.ds, type);
        small_product({w.p, depth, type}, dy_along.block_at(i), keys, n, depth, w.dv, wide, i > j);
        small_product({w.ds, depth, type}, q_along.block_at(i), keys, n, depth, w.dk, wide, i > j);
        const int64_t key_depth = packed_depth(keys, type);
        pack_left_transposed({w.ds, depth, type}, keys, queries, w.ds_rows);
        small_product({w.ds_rows, key_depth, type}, k_along.block_at(j), queries, n, key_depth, w.dq + i * wide, wide,
                      j > 0);
      }
      dispatch_rows(w.dk, wide, keys, s.width, nullptr, below(head.part(dqkv, 1), j));
      dispatch_rows(w.dv, wide, keys, s.width, nullptr, below(head.part(dqkv, 2), j));
    }
    dispatch_rows(w.dq, wide, s.time, s.width, nullptr, head.part(dqkv, 0));
  };
  parallel_tasks(s.batch * s.heads, run, [&] { release_products(type); });
}

}  // namespace lathe
#endif
