// Causal attention in blocks that stay in a core's cache (Dao et al. 2022, FlashAttention; Milakov
// and Gimelshein 2018, online softmax): memory grows linearly with the context, and blocks that the
// mask empties are skipped. float32, bfloat16 or float16, sums in float32. A task is a head of a
// sample, or a part of its queries where there are few heads; sums are in the same order either
// way, so results are the same bits on any number of threads.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// Sizes: q [batch, time, heads width]; k and v [batch, keys, kv_heads width], each of their heads
/// for heads / kv_heads queries' in turn (Ainslie et al. 2023, "GQA"); out [batch, time, heads
/// width], contiguous. Query t stands at place keys - time + t and sees the keys up to it.
struct AttentionShape {
  int64_t batch = 0, time = 0, heads = 0, width = 0;
  float scale = 1;       ///< of the scores
  int64_t kv_heads = 0;  ///< 0: heads
  int64_t keys = 0;      ///< 0: time
  /// Where it is not null: [batch, time], not decreasing along a row; query t sees no key before
  /// starts[t] <= t. For as many keys as queries.
  const int64_t* starts = nullptr;
  /// Where it is not null: [turn_rows, width], turn_rows `time` or `batch time`; q and k are turned
  /// by them on their way in, and dq and dk back (core/kernels/rotary.h). For as many keys as
  /// queries.
  const float* turns = nullptr;
  int64_t turn_rows = 0;

  int64_t groups() const {
    return kv_heads == 0 ? 1 : heads / kv_heads;
  }  ///< queries' heads for each of the keys'
  int64_t seen() const { return keys == 0 ? time : keys; }
};

/// Where q, k or v are: heads side by side in rows, `stride` elements apart, of samples
/// `batch_stride` apart.
struct HeadRows {
  const void* data = nullptr;
  int64_t stride = 0, batch_stride = 0;
};

/// Whether the kernel takes this shape in this type: what is multiplied in bfloat16 needs an even
/// width.
bool attention_ready(const AttentionShape& s, Element type);
/// out = softmax(mask(q k^T scale)) v; lse [batch, heads, time], where it is not null: log of each
/// row's sum of exponentials.
void attention_forward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                       void* out, float* lse);
/// P = exp(q k^T scale - lse):  dv = P^T dout, dS = P (dout v^T - sum(dout out)) scale, dq = dS k,
/// dk = dS^T q, for as many keys as queries. dq, dk and dv are written, and have `heads` heads all
/// three: what those of a group come to is the caller's sum.
void attention_backward(const AttentionShape& s, Element type, HeadRows q, HeadRows k, HeadRows v,
                        const void* out, const void* dout, const float* lse, HeadRows dq,
                        HeadRows dk, HeadRows dv);

}  // namespace lathe
