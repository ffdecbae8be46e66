// Causal attention in blocks that stay in a core's cache (Dao et al. 2022, FlashAttention; Milakov and Gimelshein 2018,
// online softmax): memory grows linearly with the context, and blocks that the mask empties are skipped. Reads and
// writes packed projections. float32, bfloat16 or float16, sums in float32. A task is a head of a sample, or a part of
// its queries where there are few heads; sums are in the same order either way, so results are the same bits on any
// number of threads.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// Sizes: qkv [batch, time, 3 heads width] with q, k and v in order; out [batch, time, heads width]; all contiguous.
struct AttentionShape {
  int64_t batch = 0, time = 0, heads = 0, width = 0;
  float scale = 1;  ///< of the scores
};

/// Whether the kernel takes this shape in this type: what is multiplied in bfloat16 needs an even width.
bool attention_ready(const AttentionShape& s, Element type);
/// out = softmax(mask(q k^T scale)) v; lse [batch, heads, time]: log of each row's sum of exponentials.
void attention_forward(const AttentionShape& s, Element type, const void* qkv, void* out, float* lse);
/// P = exp(q k^T scale - lse):  dv = P^T dout, dS = P (dout v^T - sum(dout out)) scale, dq = dS k, dk = dS^T q.
void attention_backward(const AttentionShape& s, Element type, const void* qkv, const void* out, const void* dout,
                        const float* lse, void* dqkv);

}  // namespace lathe
