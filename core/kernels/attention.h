// Declares causal attention, computed in blocks that stay in a core's cache (Dao et al. 2022,
// FlashAttention; Milakov and Gimelshein 2018, online softmax). Memory grows linearly with the
// context, and blocks that are masked completely are skipped. Elements are float32, bfloat16 or
// float16; sums are accumulated in float32. A task of a thread is one head of one sample. If there
// are few heads, a task is only a part of a head's queries. If each head has a single query, a task
// can be several heads that share a key head. The order of additions does not depend on the number
// of threads, so results on different numbers of threads are bitwise equal.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// The sizes of an attention. q is [batch, time, heads * width]. k and v are [batch, keys, kv_heads
/// * width]; each key head serves heads / kv_heads consecutive query heads (Ainslie et al. 2023,
/// "GQA"). The output is [batch, time, heads * width] and contiguous. Query t has position keys -
/// time + t and sees the keys up to that position.
struct AttentionShape {
  int64_t batch = 0, time = 0, heads = 0, width = 0;
  float scale = 1;       ///< factor of the scores
  float softcap = 0;     ///< c: a scaled score s becomes c tanh(s / c); 0: no cap
  int64_t kv_heads = 0;  ///< number of key heads; 0: the same as `heads`
  int64_t keys = 0;      ///< number of keys; 0: the same as `time`
  /// If not null, an array [batch, time] whose rows do not decrease. Query t sees no key before
  /// starts[t], which must not be after the position of the query.
  const int64_t* starts = nullptr;
  /// If not null, an array [rope_rows, width], where rope_rows is time or batch * time. q and k are
  /// rotated by the table's angles when they are read, and dq and dk are rotated back
  /// (core/kernels/rotary.h). The table requires as many keys as queries.
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

/// Returns whether the kernels support this shape with elements of this type. A bfloat16 matmul
/// needs an even width.
bool attention_ready(const AttentionShape& s, Element type);
/// Computes out = softmax(mask(q k^T scale)) v. If lse [batch, heads, time] is not null, it
/// receives the log of each row's sum of exponentials.
void attention_forward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                       void* out, float* lse);
/// Computes the gradients dv = P^T dout, dq = dS k and dk = dS^T q, where P = exp(q k^T scale -
/// lse) and dS = P (dout v^T - sum(dout out)) scale. If softcap is not 0, P is computed from the
/// capped scores, and dS includes the derivative of the cap. Overwrites dq, dk and dv. All three
/// have `heads` heads; the caller sums the gradients of the heads that share a key head.
void attention_backward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                        const void* out, const void* dout, const float* lse, HeadRows dq,
                        HeadRows dk, HeadRows dv);

}  // namespace lathe
