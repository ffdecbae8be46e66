// Causal attention in blocks that stay in a core's cache (Dao et al. 2022, FlashAttention; Milakov
// and Gimelshein 2018, online softmax). Memory grows linearly with the context, and blocks that are
// masked completely are skipped. Elements are float32, bfloat16 or float16; sums are in float32. A
// task of a thread is a head of a sample, or a part of the head's queries if there are few heads.
// Sums have the same order either way, so results have the same bits on any number of threads.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// Sizes: q [batch, time, heads width]; k and v [batch, keys, kv_heads width], where each key head
/// serves heads / kv_heads consecutive query heads (Ainslie et al. 2023, "GQA"); out [batch, time,
/// heads width], contiguous. Query t has position keys - time + t and sees the keys up to that
/// position.
struct AttentionShape {
  int64_t batch = 0, time = 0, heads = 0, width = 0;
  float scale = 1;       ///< factor of the scores
  float softcap = 0;     ///< c: a scaled score s becomes c tanh(s / c); 0: no cap
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t keys = 0;      ///< 0: time
  /// If not null: [batch, time], not decreasing along a row. Query t sees no key before starts[t],
  /// which must not be after the query's own position.
  const int64_t* starts = nullptr;
  /// If not null: [rope_rows, width], where rope_rows is `time` or `batch time`. q and k are
  /// rotated by its angles when they are read, and dq and dk are rotated back
  /// (core/kernels/rotary.h). Requires as many keys as queries.
  const float* rope_table = nullptr;
  int64_t rope_rows = 0;

  /// Returns the number of query heads for each key head.
  int64_t groups() const { return kv_heads == 0 ? 1 : heads / kv_heads; }
  /// Returns the number of keys.
  int64_t key_count() const { return keys == 0 ? time : keys; }
};

/// The layout of q, k or v: heads lie side by side in rows, rows are `stride` elements apart, and
/// samples are `batch_stride` elements apart.
struct HeadRows {
  const void* data = nullptr;
  int64_t stride = 0, batch_stride = 0;
};

/// Returns whether the kernel takes this shape in this type: a bfloat16 matmul needs an even width.
bool attention_ready(const AttentionShape& s, Element type);
/// Computes out = softmax(mask(q k^T scale)) v and, if lse [batch, heads, time] is not null, the
/// log of each row's sum of exponentials.
void attention_forward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                       void* out, float* lse);
/// Computes P = exp(q k^T scale - lse): dv = P^T dout, dS = P (dout v^T - sum(dout out)) scale, dq
/// = dS k, dk = dS^T q. With softcap, these use the capped scores and their derivative. Overwrites
/// dq, dk and dv, all three with `heads` heads: the caller sums the gradients of the heads that
/// share a key head.
void attention_backward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                        const void* out, const void* dout, const float* lse, HeadRows dq,
                        HeadRows dk, HeadRows dv);

}  // namespace lathe
