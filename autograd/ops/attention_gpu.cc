#include "autograd/ops/attention_gpu.h"

#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "core/kernels/scratch.h"

namespace lathe {
namespace {

/// Converts an undefined tensor to nullopt, as ATen's optional arguments need.
std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

/// Returns how many samples flash attention's backward should process first. The deterministic form
/// of this backward gives each head of a sample to one multiprocessor, and splits heads up if there
/// are fewer heads than multiprocessors. A round computes one head on each multiprocessor. The
/// heads that remain after the full rounds cost another full round, unless they are computed by a
/// separate call, in which the kernel can split them up.
int64_t full_rounds(int64_t batch, int64_t heads, int64_t processors) {
  const auto cost = [&](int64_t samples) {  // in rounds of all multiprocessors
    const int64_t blocks = samples * heads;
    if (blocks == 0) return 0.0;
    const int64_t parts = divide_up(processors, blocks);
    return static_cast<double>(divide_up(blocks * parts, processors)) / static_cast<double>(parts);
  };
  const int64_t whole = batch * heads / processors * processors / heads;
  return cost(whole) + cost(batch - whole) < 0.9 * cost(batch) ? whole : batch;
}

/// The arguments of a kernel call other than q, k and v.
struct Call {
  std::optional<at::Tensor> begins;
  int64_t queries, keys;                 // number of each in the longest document
  std::optional<int64_t> window_left{};  // number of keys before a query's position
};

Call call_of(const at::Tensor& q, const at::Tensor& k, const GpuAttention& o) {
  Call call{.begins = optional(o.documents.begins), .queries = q.size(1), .keys = k.size(1)};
  if (call.begins) {
    LATHE_CHECK(q.size(1) == k.size(1),
                "attention: with starts of documents, there must be as many keys as queries");
    call.queries = call.keys = o.documents.longest;
  }
  if (o.window > 0 && o.window < k.size(1)) call.window_left = o.window - 1;
  return call;
}

/// Joins the rows of t [B, T, H, D] into one list of positions, [B T, H, D].
at::Tensor joined_rows(const at::Tensor& t) {
  return t.reshape({t.size(0) * t.size(1), t.size(2), t.size(3)});
}

/// Returns whether cuDNN's forward replaces flash attention's. cuDNN rejects a single key.
bool cudnn_is_faster(const at::Tensor& q, const at::Tensor& k, const Call& call) {
  return cuda_api().compute_capability() / 10 == 9 && !call.begins && !call.window_left &&
         q.size(1) > 1 && q.size(1) == k.size(1) && q.size(2) == k.size(2) && q.size(3) <= 128;
}

Attended cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       double scale) {
  auto r = at::_cudnn_attention_forward(
      q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_bias=*/{}, /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, q.size(1), k.size(1), /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale);
  const at::Tensor lse = std::get<1>(r).reshape({q.size(0), q.size(2), q.size(1)});
  return {.out = std::get<0>(r).transpose(1, 2).contiguous(),
          .lse = lse.contiguous(),
          .seed = std::get<6>(r),
          .offset = std::get<7>(r)};
}

Attended flash_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const Call& call, double scale) {
  const auto rows = [&](const at::Tensor& t) { return call.begins ? joined_rows(t) : t; };
  auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
      rows(q), rows(k), rows(v), call.begins, call.begins, call.queries, call.keys,
      /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, call.window_left,
      /*window_size_right=*/0);
  return {.out = out.view(q.sizes()), .lse = lse, .seed = seed, .offset = offset};
}

using Gradients = std::array<at::Tensor, 3>;  // gradients of q, k and v

std::vector<Gradients> flash_backward(const at::Tensor& dy, const at::Tensor& q,
                                      const at::Tensor& k, const at::Tensor& v, const Attended& a,
                                      const Call& call, double scale) {
  const auto run = [&](const at::Tensor& d, const at::Tensor& query, const at::Tensor& key,
                       const at::Tensor& value, const at::Tensor& out, const at::Tensor& lse) {
    const at::Tensor begins = call.begins.value_or(at::Tensor());
    auto [dq, dk, dv] = at::_flash_attention_backward(
        d, query, key, value, out, lse, begins, begins, call.queries, call.keys,
        /*dropout_p=*/0.0, /*is_causal=*/true, a.seed, a.offset, scale, call.window_left,
        /*window_size_right=*/0);
    return Gradients{dq, dk, dv};
  };
  if (call.begins) {
    const Gradients d = run(joined_rows(dy), joined_rows(q), joined_rows(k), joined_rows(v),
                            joined_rows(a.out), a.lse);
    return {{d[0].view(q.sizes()), d[1].view(k.sizes()), d[2].view(v.sizes())}};
  }

  // Process full rounds first, where that is faster. Samples do not depend on each other.
  std::vector<Gradients> parts;
  const int64_t batch = q.size(0),
                first = full_rounds(batch, q.size(2), cuda_api().multiprocessors());
  for (const auto& [begin, count] : {std::pair(int64_t{0}, first), {first, batch - first}}) {
    if (count == 0) continue;
    const auto of = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
    parts.push_back(run(of(dy), of(q), of(k), of(v), of(a.out), of(a.lse)));
  }
  return parts;
}

// Masks of the memory-efficient kernel, by the corner of the scores from which the diagonal starts.
// The two masks are equal if there are as many keys as queries.
constexpr int64_t causal_from_top_left = 1, causal_from_bottom_right = 2;

int64_t mask_of(const at::Tensor& q, const at::Tensor& k) {
  return q.size(1) == k.size(1) ? causal_from_top_left : causal_from_bottom_right;
}

/// Returns the number of keys that a query of the memory-efficient kernel sees; nullopt: no limit.
std::optional<int64_t> keys_seen(const Call& call) {
  return call.window_left ? std::optional(*call.window_left + 1) : std::nullopt;
}

/// Repeats the heads of keys or values [B, S, K, D] for H heads of queries.
at::Tensor repeated(const at::Tensor& t, int64_t heads) {
  return t.size(2) == heads ? t : t.repeat_interleave(heads / t.size(2), 2);
}
/// Sums the gradients of repeated heads: [B, S, H, D] -> [B, S, K, D].
at::Tensor grouped(const at::Tensor& d, int64_t kv_heads) {
  if (d.size(2) == kv_heads) return d;
  return d.view({d.size(0), d.size(1), kv_heads, d.size(2) / kv_heads, d.size(3)}).sum(3);
}

/// Joins all documents of [B, T, H, D] into one row, [1, B T, H, D]. Returns t unchanged if the
/// call has no documents.
at::Tensor one_row(const at::Tensor& t, const Call& call) {
  return call.begins ? joined_rows(t).unsqueeze(0) : t;
}

Attended efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const Call& call, double scale) {
  const auto longest = [&](int64_t n) {
    return call.begins ? std::optional(n) : std::optional<int64_t>();
  };
  auto r = at::_efficient_attention_forward(
      one_row(q, call), one_row(repeated(k, q.size(2)), call),
      one_row(repeated(v, q.size(2)), call), /*bias=*/{}, call.begins, call.begins,
      longest(call.queries), longest(call.keys), /*dropout_p=*/0.0, mask_of(q, k),
      /*compute_log_sumexp=*/true, scale, /*seqlen_k=*/{}, keys_seen(call));
  return {.out = std::get<0>(r).view(q.sizes()),
          .lse = std::get<1>(r),
          .seed = std::get<2>(r),
          .offset = std::get<3>(r)};
}

std::vector<Gradients> efficient_backward(const at::Tensor& dy, const at::Tensor& q,
                                          const at::Tensor& k, const at::Tensor& v,
                                          const Attended& a, const Call& call, double scale);

/// Returns the result of efficient_backward() if there is a window and there are fewer queries than
/// keys. In this case ATen's kernel is wrong: it places the window as if the first query were at
/// the first key. So this function fills the missing positions with queries of zero whose gradients
/// are zero. Such queries contribute nothing.
std::vector<Gradients> efficient_backward_padded(const at::Tensor& dy, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const Attended& a, Call call, double scale) {
  const int64_t queries = q.size(1), keys = k.size(1);
  const auto at_the_end = [&](const at::Tensor& t, int64_t dim, int64_t size) {
    std::vector<int64_t> sizes = t.sizes().vec();
    sizes[static_cast<size_t>(dim)] = size;
    at::Tensor all = at::zeros(sizes, t.options());
    all.narrow(dim, keys - queries, queries).copy_(t.narrow(dim, 0, queries));
    return all;
  };
  // The kernel pads the log-sum-exps [B, H, T] to a multiple of 32.
  const Attended all{.out = at_the_end(a.out, 1, keys),
                     .lse = at_the_end(a.lse, 2, round_up(keys, 32)),
                     .seed = a.seed,
                     .offset = a.offset};
  call.queries = keys;
  std::vector<Gradients> d =
      efficient_backward(at_the_end(dy, 1, keys), at_the_end(q, 1, keys), k, v, all, call, scale);
  d[0][0] = d[0][0].narrow(1, keys - queries, queries);
  return d;
}

std::vector<Gradients> efficient_backward(const at::Tensor& dy, const at::Tensor& q,
                                          const at::Tensor& k, const at::Tensor& v,
                                          const Attended& a, const Call& call, double scale) {
  if (call.window_left && q.size(1) < k.size(1))
    return efficient_backward_padded(dy, q, k, v, a, call, scale);

  auto [dq, dk, dv, d_bias] = at::_efficient_attention_backward(
      one_row(dy, call), one_row(q, call), one_row(repeated(k, q.size(2)), call),
      one_row(repeated(v, q.size(2)), call), /*bias=*/{}, one_row(a.out, call), call.begins,
      call.begins, call.queries, call.keys, a.lse, /*dropout_p=*/0.0, a.seed, a.offset,
      mask_of(q, k), /*bias_requires_grad=*/false, scale, /*num_splits_key=*/std::nullopt,
      keys_seen(call));
  const auto of_groups = [&](const at::Tensor& d, const at::Tensor& t) {
    return grouped(d.view({t.size(0), t.size(1), q.size(2), t.size(3)}), t.size(2));
  };
  return {{dq.view(q.sizes()), of_groups(dk, k), of_groups(dv, v)}};
}

/// The thread's previous result of document_bounds.
struct LastBounds {
  c10::weak_intrusive_ptr<c10::TensorImpl> starts;
  int64_t version = 0;
  DocumentBounds places;
};
thread_local std::optional<LastBounds> last_bounds;

}  // namespace

DocumentBounds document_bounds(const at::Tensor& starts) {
  const c10::weak_intrusive_ptr<c10::TensorImpl> same(starts.getIntrusivePtr());
  if (last_bounds && !last_bounds->starts.expired() && last_bounds->starts == same &&
      last_bounds->version == starts._version())
    return last_bounds->places;

  const int64_t positions = starts.numel();
  const at::Tensor is_begin = starts == at::arange(starts.size(1), starts.options());
  const at::Tensor continues = starts.slice(1, 1) == starts.slice(1, 0, -1);
  const at::Tensor is_valid =
      is_begin.select(1, 0).all().logical_and(is_begin.slice(1, 1).logical_or(continues).all());
  DocumentBounds places;
  if (is_valid.item<bool>()) {
    const at::Tensor begins = at::cat(
        {is_begin.view({-1}).nonzero().view({-1}), at::full({1}, positions, starts.options())});
    places.begins = begins.to(at::kInt);
    places.longest = begins.diff().max().item<int64_t>();
  }
  last_bounds = LastBounds{.starts = same, .version = starts._version(), .places = places};
  return places;
}

bool gpu_attention_ready(at::ScalarType dtype, int64_t width) {
  return width % 8 == 0 && width <= 256 &&
         (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16);
}

Attended gpu_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const GpuAttention& options) {
  const Call call = call_of(q, k, options);
  if (q.scalar_type() == at::kFloat) return efficient_forward(q, k, v, call, options.scale);
  if (cudnn_is_faster(q, k, call)) return cudnn_forward(q, k, v, options.scale);
  return flash_forward(q, k, v, call, options.scale);
}

std::vector<std::array<at::Tensor, 3>> gpu_attention_backward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const Attended& attended, const GpuAttention& options) {
  const auto backward = q.scalar_type() == at::kFloat ? efficient_backward : flash_backward;
  return backward(dy, q, k, v, attended, call_of(q, k, options), options.scale);
}

}  // namespace lathe
