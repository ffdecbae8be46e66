// Implements the functions of attention.h. The backward pass computes the blocks of P and dS
// transposed (keys by queries). In this form they are the left factors of the matmuls for dk and
// dv, so only dq needs a transpose. Each task applies rotary position embeddings to copies of its
// queries and keys; gradients are rotated back in float32. Gradients of keys and values are
// computed for each query head. The caller sums the gradients of the query heads that share a key
// head.
#include "core/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/kernels/gemm.h"
#include "core/kernels/gemv.h"
#include "core/kernels/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "core/kernels/attention-inl.h"

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(softmax_block);
HWY_EXPORT(write_rows_of);
HWY_EXPORT(dot_rows);
HWY_EXPORT(softmax_backward_block);
HWY_EXPORT(one_query);
HWY_EXPORT(rotate_matrix);

namespace {

constexpr int64_t block = 64;  // number of queries, and of keys, in a block

Matrix below(Matrix m, int64_t row) { return {m.at(row, 0), m.stride, m.type}; }

/// Describes one query head of one sample.
struct Head {
  Head(const AttentionShape& s, Element type, int64_t index)
      : sample(index / s.heads),
        head(index % s.heads),
        key_head(head / s.groups()),
        width(s.width),
        joined{nullptr, s.heads * s.width, s.time * s.heads * s.width},
        element(type),
        starts(s.starts == nullptr ? nullptr : s.starts + sample * s.time),
        rope_table(s.rope_table == nullptr || s.rope_rows == s.time
                       ? s.rope_table
                       : s.rope_table + sample * s.time * s.width) {}
  /// Returns the rows of this head in a tensor that has as many heads as q.
  Matrix own(HeadRows r) const { return at(r, head); }
  /// Returns the rows of k or v that belong to the key head of this head.
  Matrix shared(HeadRows r) const { return at(r, key_head); }
  /// Returns the rows of this head in the output or in the output's gradient.
  Matrix rows(const void* out) const { return at({out, joined.stride, joined.batch_stride}, head); }
  /// Returns a pointer to the indices of the first keys that query i and later queries see; null if
  /// all queries see key 0. first_block() returns the beginning of the block that contains the
  /// first key that query i sees.
  const int64_t* starts_of(int64_t i) const { return starts == nullptr ? nullptr : starts + i; }
  int64_t first_block(int64_t i) const { return starts == nullptr ? 0 : starts[i] / block * block; }
  /// Rotates rows [begin, end) of q or k into `space` [time, width] and returns `space` as a
  /// matrix. Returns `rows` if rope_table is null.
  Matrix rotated(Matrix rows, int64_t begin, int64_t end, void* space) const {
    if (rope_table == nullptr) return rows;
    const Matrix to{space, width, element};
    rotate(below(rows, begin), begin, end - begin, 1, below(to, begin));
    return to;
  }
  /// Rotates `count` rows of dq or dk back in place. The first row belongs to position t.
  void unrotate(Matrix rows, int64_t t, int64_t count) const {
    if (rope_table != nullptr) rotate(rows, t, count, -1, rows);
  }

 private:
  void rotate(Matrix from, int64_t t, int64_t count, float sign, Matrix to) const {
    HWY_DYNAMIC_DISPATCH(rotate_matrix)(from, count, width, rope_table + t * width, sign, to);
  }
  Matrix at(HeadRows r, int64_t h) const {
    return {Matrix{r.data, 0, element}.at(0, sample * r.batch_stride + h * width), r.stride,
            element};
  }
  int64_t sample, head, key_head, width;
  HeadRows joined;
  Element element;
  const int64_t* starts;
  const float* rope_table;  // the table's row for the sample's first position; null: no rotation
};

/// The type of a head's elements (`own`), and the type in which they are multiplied (`as`).
struct Types {
  explicit Types(Element own_) : own(own_), as(multiplied_as(own_)) {}
  Element own, as;
  bool widens() const { return own != as; }
};

/// The rows of a head [rows, width], packed block by block as right factors of matmuls.
class Packed {
 public:
  /// If `transposed` is true, blocks are packed as [width, rows of the block], otherwise as [rows
  /// of the block, width].
  Packed(int64_t rows, int64_t width, Types types, bool transposed)
      : rows_(rows),
        width_(width),
        types_(types),
        transposed_(transposed),
        wide_(round_up(transposed ? block : width, 16)) {}
  /// Returns whether rows are copied. float32 rows that are not transposed are read in place.
  bool copied() const { return transposed_ || types_.own != Element::f32; }
  int64_t bytes() const { return copied() ? divide_up(rows_, block) * block_bytes() : 0; }
  /// Packs rows [begin, end), where `begin` is the beginning of a block, into `to`.
  void fill(Matrix from, char* to, int64_t begin, int64_t end) {
    from_ = from;
    at_ = to;
    if (!copied()) return;
    for (int64_t t = begin; t < end; t += block) {
      const int64_t n = std::min(block, rows_ - t);
      void* place = const_cast<void*>(block_at(t).data);
      if (transposed_)
        pack_right_transposed(below(from, t), width_, n, wide_, place, types_.as);
      else
        pack_right(below(from, t), n, width_, wide_, place, types_.as);
    }
  }
  /// Returns the block that begins at row t.
  Matrix block_at(int64_t t) const {
    if (!copied()) return below(from_, t);
    return {at_ + t / block * block_bytes(), wide_, types_.as};
  }

 private:
  int64_t block_bytes() const {
    return (transposed_ ? packed_depth(width_, types_.as) : block) * wide_ * bytes_of(types_.as);
  }
  int64_t rows_, width_;
  Types types_;
  bool transposed_;
  int64_t wide_;
  Matrix from_{};
  char* at_ = nullptr;
};

/// Returns up to a block of rows as a left factor of a matmul. The rows are used in place, or
/// converted to float32 in `space`.
Matrix left_rows(Matrix from, int64_t row, int64_t rows, int64_t width, Types types, float* space) {
  const Matrix there = below(from, row);
  if (!types.widens()) return there;
  widen(there, rows, width, space, width);
  return {space, width, types.as};
}

struct ForwardSpace {
  ForwardSpace(const AttentionShape& s, Types types, const Packed& k, const Packed& v, char* base) {
    Carver c(base);
    keys = c.take(k.bytes());
    values = c.take(v.bytes());
    scores = c.take<float>(block * block);
    p = c.take(block * block * bytes_of(types.as));
    m = c.take<float>(block);
    l = c.take<float>(block);
    acc = c.take<float>(block * round_up(s.width, 16));
    q = c.take<float>(types.widens() ? block * s.width : 0);
    const int64_t rows = s.rope_table == nullptr ? 0 : s.time * s.width * bytes_of(types.own);
    rotated_q = c.take(rows);
    rotated_k = c.take(rows);
    used = c.used();
  }
  char *keys, *values, *p, *rotated_q, *rotated_k;
  float *scores, *m, *l, *acc, *q;
  int64_t used;
};

struct BackwardSpace {
  BackwardSpace(const AttentionShape& s, Types types, const Packed (&packs)[5], char* base) {
    Carver c(base);
    for (int i = 0; i < 5; ++i) packed[i] = c.take(packs[i].bytes());
    const int64_t wide = round_up(s.width, 16);
    scores = c.take<float>(block * block);
    dp = c.take<float>(block * block);
    p = c.take(block * block * bytes_of(types.as));
    ds = c.take(block * block * bytes_of(types.as));
    ds_rows = c.take(block * block * bytes_of(types.as));
    delta = c.take<float>(s.time);
    dq = c.take<float>(s.time * wide);
    dk = c.take<float>(block * wide);
    dv = c.take<float>(block * wide);
    k = c.take<float>(types.widens() ? block * s.width : 0);
    v = c.take<float>(types.widens() ? block * s.width : 0);
    const int64_t rows = s.rope_table == nullptr ? 0 : s.time * s.width * bytes_of(types.own);
    rotated_q = c.take(rows);
    rotated_k = c.take(rows);
    used = c.used();
  }
  char *packed[5], *p, *ds, *ds_rows, *rotated_q, *rotated_k;
  float *scores, *dp, *delta, *dq, *dk, *dv, *k, *v;
  int64_t used;
};

/// Splits a head's blocks of queries (or keys) into parts, so that no thread is idle if there are
/// few heads. If there are two or more heads per thread, a head has one part.
struct HeadParts {
  /// `rows_` is the number of queries (or keys).
  HeadParts(const AttentionShape& s, int64_t rows_)
      : heads(s.batch * s.heads), rows(rows_), blocks(divide_up(rows, block)) {
    const int64_t threads = at::get_num_threads();
    const int64_t wanted = heads >= 2 * threads ? 1 : divide_up(4 * threads, heads);
    each = divide_up(blocks, std::min(wanted, blocks));
    count = divide_up(blocks, each);
  }
  int64_t begin(int64_t part) const { return part * each * block; }
  int64_t end(int64_t part) const { return std::min(rows, (part + 1) * each * block); }
  int64_t heads, rows, blocks, each, count;
};

}  // namespace

bool attention_ready(const AttentionShape& s, Element type) {
  return gemm_ready(type) && (multiplied_as(type) == Element::f32 || s.width % 2 == 0);
}

namespace {

/// Computes attention for one query per head, as when text is generated one token at a time. Keys
/// and values are read in place. Each key or value is read once for up to max_gemv_rows query heads
/// that share it.
void attend_one(const AttentionShape& s, Element type, HeadRows q_rows, HeadRows k_rows,
                HeadRows v_rows, void* out, float* lse) {
  const int64_t wide = round_up(s.width, 16), kv_heads = s.heads / s.groups();
  constexpr int64_t most_lanes = 16;
  // The first call, with a null base, computes the size of a thread's memory. Each task then
  // divides the memory of its thread in the same way.
  const auto carve = [&](char* base, auto&& use) {
    Carver c(base);
    auto* q = c.take<float>(max_gemv_rows * s.width);
    auto* scores = c.take<float>(max_gemv_rows * block);
    auto* p = c.take<float>(max_gemv_rows * block);
    auto* m = c.take<float>(max_gemv_rows);
    auto* l = c.take<float>(max_gemv_rows);
    auto* acc = c.take<float>(max_gemv_rows * wide);
    use(q, scores, p, m, l, acc, c.take(most_lanes * s.width * bytes_of(type)));
    return c.used();
  };

  const Scratch scratch(carve(nullptr, [](auto...) {}));
  const int64_t parts = divide_up(s.groups(), max_gemv_rows);  // into which each group of heads
                                                               // is divided

  const auto run = [&](int64_t task) {
    const int64_t pair = task / parts, sample = pair / kv_heads, key_head = pair % kv_heads;
    const int64_t first = key_head * s.groups() + task % parts * max_gemv_rows;
    const int64_t heads = std::min(max_gemv_rows, (key_head + 1) * s.groups() - first),
                  index = sample * s.heads + first;
    const Head head(s, type, index);
    const Matrix k = head.shared(k_rows), v = head.shared(v_rows);

    carve(scratch.mine(), [&](float* q, float* scores, float* p, float* m, float* l, float* acc,
                              char* space) {
      std::fill_n(q, max_gemv_rows * s.width, 0.0f);
      widen({head.own(q_rows).data, s.width, type}, heads, s.width, q, s.width);
      std::fill_n(m, heads, -INFINITY);
      std::fill_n(l, heads, 0.0f);

      // m, l and acc hold the state of the online softmax between blocks of keys.
      const int64_t first = head.first_block(0);
      for (int64_t j = first; j < s.key_count(); j += block) {
        HWY_DYNAMIC_DISPATCH(one_query)
        (below(k, j), below(v, j), std::min(block, s.key_count() - j), j, head.starts_of(0),
         j == first, s.width, heads, q, s.scale, s.softcap, scores, p, m, l, acc, wide, space);
      }

      HWY_DYNAMIC_DISPATCH(write_rows_of)
      (acc, wide, heads, s.width, l, {head.rows(out).data, s.width, type});

      // Keep the log of each row's sum of exponentials for the backward pass. If there will be no
      // backward pass, `lse` is null.
      for (int64_t h = 0; h < heads && lse != nullptr; ++h) lse[index + h] = m[h] + std::log(l[h]);
    });
  };

  parallel_tasks(s.batch * kv_heads * parts, run, [] {});
}

}  // namespace

// Each block of queries is multiplied with the blocks of keys up to the block at the same position:
//
//          keys j ->
//   q i   +---+---+---+---+     scores = q_i k_j^T; softmax updates m and l, and gives P;
//    |    | x |   |   |   |     acc_i = acc_i (rescaled) + P v_j
//    v    +---+---+---+---+
//         | x | x |   |   |     x: computed; blocks on the diagonal are masked in part
//         +---+---+---+---+
void attention_forward(const AttentionShape& s, Element type, HeadRows q_rows, HeadRows k_rows,
                       HeadRows v_rows, void* out, float* lse) {
  // For a single query, most of the time is spent on reading keys and values. attend_one() reads
  // them in place, without packing them.
  if (s.time == 1 && s.rope_table == nullptr && k_rows.stride == v_rows.stride &&
      gemv_ready(type, type, 1))
    return attend_one(s, type, q_rows, k_rows, v_rows, out, lse);

  const Types types(type);
  const Packed shape_k(s.key_count(), s.width, types, true),
      shape_v(s.key_count(), s.width, types, false);
  const Scratch scratch(ForwardSpace(s, types, shape_k, shape_v, nullptr).used);
  const int64_t wide = round_up(s.width, 16),
                before = s.key_count() - s.time;  // positions before the first query

  const HeadParts parts(s, s.time);
  const auto run = [&](int64_t task) {
    const int64_t index = task % parts.heads,
                  part = parts.count - 1 - task / parts.heads;  // the slowest parts run first

    Packed keys = shape_k, values = shape_v;
    const ForwardSpace w(s, types, keys, values, scratch.mine());
    const Head head(s, type, index);

    // Prepare the inputs of the part once for all its blocks: rotate the queries, rotate and pack
    // the keys that the queries see, and pack the values of these keys.
    const int64_t end = parts.end(part);
    const Matrix q = head.rotated(head.own(q_rows), parts.begin(part), end, w.rotated_q),
                 y = head.rows(out);
    const int64_t first_key = head.first_block(parts.begin(part));
    keys.fill(head.rotated(head.shared(k_rows), first_key, before + end, w.rotated_k), w.keys,
              first_key, before + end);
    values.fill(head.shared(v_rows), w.values, first_key, before + end);

    for (int64_t i = parts.begin(part); i < end; i += block) {
      const int64_t rows = std::min(block, s.time - i);
      const Matrix queries = left_rows(q, i, rows, s.width, types, w.q);
      std::fill_n(w.m, rows, -INFINITY);
      std::fill_n(w.l, rows, 0.0f);

      // Query i and later queries don't see documents before the document of query i, so skip the
      // blocks of keys that contain only such documents.
      const int64_t first = head.first_block(i);
      for (int64_t j = first; j < before + i + rows; j += block) {
        const int64_t columns = std::min(block, s.key_count() - j),
                      depth = packed_depth(columns, types.as);
        block_gemm(queries, keys.block_at(j), rows, round_up(columns, 16), s.width, w.scores, block,
                   false);

        HWY_DYNAMIC_DISPATCH(softmax_block)
        (w.scores, block, rows, columns, depth, before + i, j, head.starts_of(i), j == first,
         s.scale, s.softcap, w.p, types.as, w.m, w.l, w.acc, wide);
        const int64_t n = values.copied() ? wide : s.width;
        block_gemm({w.p, depth, types.as}, values.block_at(j), rows, n, depth, w.acc, wide,
                   j > first);
      }

      // Divide by the denominator. Keep the log of the denominator for the backward pass.
      HWY_DYNAMIC_DISPATCH(write_rows_of)(w.acc, wide, rows, s.width, w.l, below(y, i));
      for (int64_t r = 0; r < rows && lse != nullptr; ++r)
        lse[index * s.time + i + r] = w.m[r] + std::log(w.l[r]);
    }
  };

  parallel_tasks(parts.heads * parts.count, run, [&] { release_gemm(types.as); });
}

// Processes the blocks of the drawing above column by column. Each block of keys is combined with
// the blocks of queries that see it. This gives dk and dv of the keys, and adds to dq of the
// queries. If there are few heads, a task is a part of a head. Two tasks must not add to the same
// dq, so there are separate tasks for dk and dv of a part of the keys, and for dq of a part of the
// queries. Both kinds of task compute P and dS of their blocks. A pair of blocks then takes 7
// matmuls instead of 5, on cores that would otherwise be idle. Each sum is computed in the same
// order in both cases.
void attention_backward(const AttentionShape& s, Element type, HeadRows all_q, HeadRows all_k,
                        HeadRows all_v, const void* out, const void* dout, const float* lse,
                        HeadRows dq, HeadRows dk, HeadRows dv) {
  // q and dout are packed twice: transposed (`across`) and not transposed (`along`). Only dq needs
  // packed k, which is not transposed.
  const Types types(type);
  const Packed across(s.time, s.width, types, true), along(s.time, s.width, types, false),
      keys_along(s.key_count(), s.width, types, false);
  const Packed shapes[5] = {across, across, along, along, keys_along};
  const Scratch scratch(BackwardSpace(s, types, shapes, nullptr).used);

  const int64_t wide = round_up(s.width, 16),
                before = s.key_count() - s.time;  // positions before the first query
  const HeadParts key_parts(s, s.key_count()), query_parts(s, s.time);
  const bool together = key_parts.count == 1 && query_parts.count == 1;
  const auto write_rows = HWY_DYNAMIC_DISPATCH(write_rows_of);

  // Returns the beginning of the first block of queries that may see a key of the block that begins
  // at j.
  const auto first_query_of = [before](int64_t j) {
    return std::max<int64_t>(0, j - before) / block * block;
  };

  const auto run = [&](int64_t task) {
    const int64_t index = task % key_parts.heads, kind = task / key_parts.heads;
    // Start the tasks with the most work first. The earliest keys are seen by the most queries, so
    // parts of keys run from the first to the last. The latest queries see the most keys, so parts
    // of queries run from the last to the first.
    const bool makes_keys = kind < key_parts.count, makes_queries = together || !makes_keys;
    const int64_t query_part = key_parts.count + query_parts.count - 1 - kind;

    const int64_t first_key = makes_keys ? key_parts.begin(kind) : 0;
    const int64_t first_query =
        makes_keys ? first_query_of(first_key) : query_parts.begin(query_part);
    const int64_t last_query = makes_keys ? s.time : query_parts.end(query_part);
    const int64_t last_key = makes_keys ? key_parts.end(kind) : before + last_query;

    Packed packs[5] = {across, across, along, along, keys_along};
    auto& [q_across, dy_across, q_along, dy_along, k_along] = packs;

    const BackwardSpace w(s, types, packs, scratch.mine());
    const Head head(s, type, index);
    const Matrix q = head.rotated(head.own(all_q), first_query, last_query, w.rotated_q);
    const Matrix k = head.rotated(head.shared(all_k), first_key, last_key, w.rotated_k);
    const Matrix v = head.shared(all_v), dy = head.rows(dout);
    const float* row_lse = lse + index * s.time;

    // Pack only what the matmuls of this task read.
    q_across.fill(q, w.packed[0], first_query, last_query);
    dy_across.fill(dy, w.packed[1], first_query, last_query);
    if (makes_keys) q_along.fill(q, w.packed[2], first_query, last_query);
    if (makes_keys) dy_along.fill(dy, w.packed[3], first_query, last_query);
    if (makes_queries) k_along.fill(k, w.packed[4], first_key, last_key);

    // For each query, delta = sum(dout out), which the derivative of softmax subtracts.
    HWY_DYNAMIC_DISPATCH(dot_rows)
    (below(dy, first_query), below(head.rows(out), first_query), last_query - first_query, s.width,
     w.delta + first_query);

    const int64_t n = q_along.copied() ? wide : s.width;
    for (int64_t j = first_key; j < last_key; j += block) {
      const int64_t keys = std::min(block, s.key_count() - j);
      const Matrix k_rows = left_rows(k, j, keys, s.width, types, w.k);
      const Matrix v_rows = left_rows(v, j, keys, s.width, types, w.v);

      bool is_seen = false;
      for (int64_t i = std::max(first_query_of(j), first_query); i < last_query; i += block) {
        // The documents of these queries and of all later queries start after these keys.
        if (head.first_block(i) > j) break;

        const int64_t queries = std::min(block, s.time - i),
                      depth = packed_depth(queries, types.as);
        const int64_t columns = round_up(queries, 16);
        block_gemm(k_rows, q_across.block_at(i), keys, columns, s.width, w.scores, block, false);
        block_gemm(v_rows, dy_across.block_at(i), keys, columns, s.width, w.dp, block, false);

        // Compute both P and dS in one pass.
        HWY_DYNAMIC_DISPATCH(softmax_backward_block)
        (w.scores, w.dp, block, keys, queries, depth, j, before + i, head.starts_of(i), s.scale,
         s.softcap, row_lse + i, w.delta + i, w.p, w.ds, types.as);

        // Compute dv += P^T dout and dk += dS^T q. The blocks of P and dS are transposed already.
        if (makes_keys) {
          block_gemm({w.p, depth, types.as}, dy_along.block_at(i), keys, n, depth, w.dv, wide,
                     is_seen);
          block_gemm({w.ds, depth, types.as}, q_along.block_at(i), keys, n, depth, w.dk, wide,
                     is_seen);
          is_seen = true;
        }

        // dq += dS k needs dS with queries as rows, so transpose dS.
        if (!makes_queries) continue;
        const int64_t key_depth = packed_depth(keys, types.as);
        pack_left_transposed({w.ds, depth, types.as}, keys, queries, w.ds_rows, types.as);
        block_gemm({w.ds_rows, key_depth, types.as}, k_along.block_at(j), queries, n, key_depth,
                   w.dq + i * wide, wide, j > head.first_block(i));
      }

      if (!makes_keys) continue;
      if (!is_seen) {
        std::fill_n(w.dk, keys * wide, 0.0f);
        std::fill_n(w.dv, keys * wide, 0.0f);
      }
      head.unrotate({w.dk, wide, Element::f32}, j, keys);
      write_rows(w.dk, wide, keys, s.width, nullptr, below(head.own(dk), j));
      write_rows(w.dv, wide, keys, s.width, nullptr, below(head.own(dv), j));
    }

    if (!makes_queries) return;
    float* made = w.dq + first_query * wide;
    head.unrotate({made, wide, Element::f32}, first_query, last_query - first_query);
    write_rows(made, wide, last_query - first_query, s.width, nullptr,
               below(head.own(dq), first_query));
  };

  const int64_t tasks = together ? 1 : key_parts.count + query_parts.count;
  parallel_tasks(key_parts.heads * tasks, run, [&] { release_gemm(types.as); });
}

}  // namespace lathe
#endif
