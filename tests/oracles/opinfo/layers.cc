// Maps PyTorch's functions for shapes and layers to Lathe's functions.
#include "tests/oracles/opinfo/calls.h"

#include "autograd/einops.h"
#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/images.h"
#include "autograd/ops/losses.h"
#include "autograd/ops/shapes.h"
#include "core/dtype.h"
#include "tests/support/catch.h"

namespace lathe::test {
namespace {

Pair pair_of(const std::vector<int64_t>& v) {
  return v.size() == 1 ? Pair(v[0]) : Pair(v.at(0), v.at(1));
}
std::optional<Pair> maybe_pair(Call& c, size_t place, const char* name) {
  const auto v = c.wholes(place, name);
  return v.empty() ? std::nullopt : std::optional(pair_of(v));
}
std::optional<int64_t> maybe_one(Call& c, size_t place, const char* name) {
  const auto v = c.wholes(place, name);
  return v.empty() ? std::nullopt : std::optional(v[0]);
}
Reduction reduction(Call& c) {
  const std::string r = c.text(99, "reduction", "mean");
  return r == "none" ? Reduction::none : r == "sum" ? Reduction::sum : Reduction::mean;
}
CrossEntropyOptions entropy_options(Call& c) {
  CrossEntropyOptions o;
  o.weight = c.t(2, "weight");
  o.ignore_index = c.whole(99, "ignore_index", -100);
  o.reduction = reduction(c);
  o.label_smoothing = c.number(99, "label_smoothing", 0);
  return o;
}
Results interpolated(Call& c, Interpolation mode) {
  const Variable x = c.v(0);
  c.text(3, "mode", "nearest");
  const bool corners = c.flag(4, "align_corners", false);
  if (x.dim() > 4) throw Unsupported("volumes");
  if (c.has(1, "size")) return {interpolate(x, pair_of(c.wholes(1, "size")), mode, corners)};
  if (c.is_list(2, "scale_factor")) throw Unsupported("scales in a list");
  const double scale = c.number(2, "scale_factor", 1);
  return {interpolate_by(x, scale, scale, mode, corners)};
}
Results padded(Call& c, PadMode mode) {
  const Variable x = c.v(0);
  const auto pads = c.wholes(1, "pad");
  c.text(2, "mode", "constant");
  return {pad(x, pads, mode, c.number(3, "value", 0))};
}
Conv2dOptions conv_options(Call& c) {
  Conv2dOptions o;
  if (c.has(4, "padding") && !c.is_list(4, "padding") && !c.is_number(4, "padding"))
    throw Unsupported("padding by name");
  o.stride = pair_of(c.wholes(3, "stride", {1}));
  o.padding = pair_of(c.wholes(4, "padding", {0}));
  o.dilation = pair_of(c.wholes(5, "dilation", {1}));
  o.groups = c.whole(6, "groups", 1);
  return o;
}
void need_dims(const Variable& x, int64_t n, const char* what) {
  if (x.dim() != n) throw Unsupported(what);
}

template <class F>
Function loss(F f) {
  return [f](Call& c) -> Results {
    const Variable x = c.v(0), target = c.v(1);
    return {f(x, target, c)};
  };
}

}  // namespace

Functions shape_functions() {
  const auto place = [](auto f) {
    return [f](Call& c) -> Results {
      const Variable x = c.v(0);
      return {f(x, c.rest(1))};
    };
  };
  return {
      {"reshape", place([](const Variable& x, const auto& s) { return reshape(x, s); })},
      {"expand", place([](const Variable& x, const auto& s) { return expand(x, s); })},
      {"permute", place([](const Variable& x, const auto& s) { return permute(x, s); })},
      {"flip", [](Call& c) -> Results { return {flip(c.v(0), c.wholes(1, "dims"))}; }},
      {"roll",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         const auto shifts = c.wholes(1, "shifts");
         return {roll(x, shifts, c.wholes(2, "dims"))};
       }},
      {"flatten",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         const int64_t first = c.whole(1, "start_dim", 0);
         return {flatten(x, first, c.whole(2, "end_dim", -1))};
       }},
      {"squeeze",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         return {c.has(1, "dim") ? squeeze(x, c.wholes(1, "dim")) : squeeze(x)};
       }},
      {"squeeze.multiple",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         return {squeeze(x, c.wholes(1, "dim"))};
       }},
      {"unsqueeze", [](Call& c) -> Results { return {unsqueeze(c.v(0), c.whole(1, "dim", 0))}; }},
      {"transpose",
       [](Call& c) -> Results {
         return {transpose(c.v(0), c.whole(1, "dim0", 0), c.whole(2, "dim1", 1))};
       }},
      {"select",
       [](Call& c) -> Results {
         return {select(c.v(0), c.whole(1, "dim", 0), c.whole(2, "index", 0))};
       }},
      {"unbind", [](Call& c) -> Results { return unbind(c.v(0), c.whole(1, "dim", 0)); }},
      {"chunk",
       [](Call& c) -> Results {
         return chunk(c.v(0), c.whole(1, "chunks", 1), c.whole(2, "dim", 0));
       }},
      {"split",
       [](Call& c) -> Results {
         return split(c.v(0), c.whole(1, "split_size", 1), c.whole(2, "dim", 0));
       }},
      {"split.list_args",
       [](Call& c) -> Results {
         return split(c.v(0), at::IntArrayRef(c.wholes(1, "split_size")), c.whole(2, "dim", 0));
       }},
      {"split_with_sizes",
       [](Call& c) -> Results {
         return split(c.v(0), at::IntArrayRef(c.wholes(1, "split_sizes")), c.whole(2, "dim", 0));
       }},
      {"cat", [](Call& c) -> Results { return {cat(c.list(0), c.whole(1, "dim", 0))}; }},
      {"stack", [](Call& c) -> Results { return {stack(c.list(0), c.whole(1, "dim", 0))}; }},
      {"triu", [](Call& c) -> Results { return {triu(c.v(0), c.whole(1, "diagonal", 0))}; }},
      {"tril", [](Call& c) -> Results { return {tril(c.v(0), c.whole(1, "diagonal", 0))}; }},
      {"diagonal",
       [](Call& c) -> Results {
         return {diagonal(c.v(0), c.whole(1, "offset", 0), c.whole(2, "dim1", 0),
                          c.whole(3, "dim2", 1))};
       }},
      {"unfold",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         if (x.dim() == 0) throw Unsupported("no dims");
         return {
             unfold(x, c.whole(1, "dimension", 0), c.whole(2, "size", 1), c.whole(3, "step", 1))};
       }},
      {"gather",
       [](Call& c) -> Results { return {gather(c.v(0), c.whole(1, "dim", 0), c.t(2, "index"))}; }},
      {"index_select",
       [](Call& c) -> Results {
         return {index_select(c.v(0), c.whole(1, "dim", 0), c.t(2, "index"))};
       }},
      {"index_add",
       [](Call& c) -> Results {
         return {index_add(c.v(0), c.whole(1, "dim", 0), c.t(2, "index"), c.v(3, "source"))};
       }},
      {"scatter_add",
       [](Call& c) -> Results {
         return {scatter_add(c.v(0), c.whole(1, "dim", 0), c.t(2, "index"), c.v(3, "src"))};
       }},
      {"matmul",
       [](Call& c) -> Results {
         const Variable a = c.v(0), b = c.v(1);
         if (a.dim() < 2 || b.dim() < 2) throw Unsupported("vectors");
         return {matmul(a, b)};
       }},
      {"bmm", [](Call& c) -> Results { return {bmm(c.v(0), c.v(1))}; }},
      {"outer", [](Call& c) -> Results { return {outer(c.v(0), c.v(1))}; }},
      {"einsum", [](Call& c) -> Results { return {einsum(c.text(1, "", ""), c.list(0))}; }},
      {"pad.constant", [](Call& c) { return padded(c, PadMode::constant); }},
      {"pad.reflect", [](Call& c) { return padded(c, PadMode::reflect); }},
      {"pad.replicate", [](Call& c) { return padded(c, PadMode::replicate); }},
      {"pad.circular", [](Call& c) { return padded(c, PadMode::circular); }}};
}

Functions layer_functions() {
  return {
      {"linear",
       [](Call& c) -> Results {
         const Variable x = c.v(0), w = c.v(1);
         if (w.dim() != 2) throw Unsupported("a weight of one dim");
         return {linear(x, w, c.v(2, "bias"))};
       }},
      {"embedding",
       [](Call& c) -> Results {  // OpInfo's first argument is the weight
         const Variable w = c.v(0);
         return {embedding(c.t(1), w)};
       }},
      {"conv1d",
       [](Call& c) -> Results {
         const Variable x = c.v(0), w = c.v(1, "weight"), b = c.v(2, "bias");
         need_dims(x, 3, "no batch");
         const Conv2dOptions o = conv_options(c);
         return {conv1d(x, w, b, {o.stride.w, o.padding.w, o.dilation.w, o.groups})};
       }},
      {"conv2d",
       [](Call& c) -> Results {
         const Variable x = c.v(0), w = c.v(1, "weight"), b = c.v(2, "bias");
         need_dims(x, 4, "no batch");
         return {conv2d(x, w, b, conv_options(c))};
       }},
      {"conv_transpose2d",
       [](Call& c) -> Results {
         const Variable x = c.v(0), w = c.v(1, "weight"), b = c.v(2, "bias");
         need_dims(x, 4, "no batch");
         ConvTranspose2dOptions o;
         o.stride = pair_of(c.wholes(3, "stride", {1})),
         o.padding = pair_of(c.wholes(4, "padding", {0}));
         o.output_padding = pair_of(c.wholes(5, "output_padding", {0})),
         o.groups = c.whole(6, "groups", 1);
         o.dilation = pair_of(c.wholes(7, "dilation", {1}));
         return {conv_transpose2d(x, w, b, o)};
       }},
      {"max_pool1d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 3, "no batch");
         const int64_t k = maybe_one(c, 1, "kernel_size").value();
         const auto stride = maybe_one(c, 2, "stride");
         const int64_t padding = maybe_one(c, 3, "padding").value_or(0);
         return {max_pool1d(x, k, stride, padding, maybe_one(c, 4, "dilation").value_or(1),
                            c.flag(5, "ceil_mode", false))};
       }},
      {"max_pool2d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 4, "no batch");
         const Pair k = pair_of(c.wholes(1, "kernel_size"));
         const auto stride = maybe_pair(c, 2, "stride");
         const Pair padding = pair_of(c.wholes(3, "padding", {0}));
         return {max_pool2d(x, k, stride, padding, pair_of(c.wholes(4, "dilation", {1})),
                            c.flag(5, "ceil_mode", false))};
       }},
      {"avg_pool1d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 3, "no batch");
         const int64_t k = maybe_one(c, 1, "kernel_size").value();
         const auto stride = maybe_one(c, 2, "stride");
         return {avg_pool1d(x, k, stride, maybe_one(c, 3, "padding").value_or(0),
                            c.flag(4, "ceil_mode", false), c.flag(5, "count_include_pad", true))};
       }},
      {"avg_pool2d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 4, "no batch");
         const Pair k = pair_of(c.wholes(1, "kernel_size"));
         const auto stride = maybe_pair(c, 2, "stride");
         const Pair padding = pair_of(c.wholes(3, "padding", {0}));
         return {avg_pool2d(x, k, stride, padding, c.flag(4, "ceil_mode", false),
                            c.flag(5, "count_include_pad", true))};
       }},
      {"adaptive_avg_pool1d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 3, "no batch");
         return {adaptive_avg_pool1d(x, c.wholes(1, "output_size").at(0))};
       }},
      {"adaptive_avg_pool2d",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 4, "no batch");
         if (c.is_list(1, "output_size") && c.wholes(1, "output_size").size() < 2)
           throw Unsupported("a size of one");
         return {adaptive_avg_pool2d(x, pair_of(c.wholes(1, "output_size")))};
       }},
      {"interpolate.nearest", [](Call& c) { return interpolated(c, Interpolation::nearest); }},
      {"interpolate.bilinear", [](Call& c) { return interpolated(c, Interpolation::bilinear); }},
      {"interpolate.linear", [](Call& c) { return interpolated(c, Interpolation::bilinear); }},
      {"nn_unfold",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         need_dims(x, 4, "no batch");
         const Pair k = pair_of(c.wholes(1, "kernel_size")),
                    dilation = pair_of(c.wholes(2, "dilation", {1}));
         const Pair padding = pair_of(c.wholes(3, "padding", {0}));
         return {im2col(x, k, dilation, padding, pair_of(c.wholes(4, "stride", {1})))};
       }},
      {"layer_norm",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         if (c.wholes(1, "normalized_shape").size() != 1) throw Unsupported("over several dims");
         const Variable w = c.v(2, "weight"), b = c.v(3, "bias");
         return {layer_norm(x, w, b, c.number(4, "eps", 1e-5))};
       }},
      {"rms_norm",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         if (c.wholes(1, "normalized_shape").size() != 1) throw Unsupported("over several dims");
         if (!c.has(3, "eps")) throw Unsupported("the dtype's epsilon");
         const Variable w = c.v(2, "weight");
         return {rms_norm(x, w, c.number(3, "eps", 0))};
       }},
      {"group_norm",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         const int64_t groups = c.whole(1, "num_groups", 1);
         const Variable w = c.v(2, "weight"), b = c.v(3, "bias");
         return {group_norm(x, groups, w, b, c.number(4, "eps", 1e-5))};
       }},
      {"instance_norm",
       [](Call& c) -> Results {
         const Variable x = c.v(0), w = c.v(3, "weight"), b = c.v(4, "bias");
         if (!c.flag(5, "use_input_stats", true)) throw Unsupported("running statistics");
         c.v(1, "running_mean");
         c.v(2, "running_var");
         c.number(6, "momentum", 0);  // instance_norm() has no momentum
         return {instance_norm(x, w, b, c.number(7, "eps", 1e-5))};
       }},
      {"batch_norm",
       [](Call& c) -> Results {
         const Variable x = c.v(0), mean = c.v(1, "running_mean"), var = c.v(2, "running_var");
         const Variable w = c.v(3, "weight"), b = c.v(4, "bias");
         const bool training = c.flag(5, "training", false);
         c.number(6, "momentum", 0);
         const double eps = c.number(7, "eps", 1e-5);
         return {training ? batch_norm(x, w, b, eps).y
                          : batch_norm(x, w, b, mean.data(), var.data(), eps)};
       }},
      {"scaled_dot_product_attention",
       [](Call& c) -> Results {
         const Variable q = c.v(0), k = c.v(1), v = c.v(2);
         AttentionOptions o;
         o.mask = c.v(3, "attn_mask");
         o.is_causal = c.flag(5, "is_causal", false);
         o.enable_gqa = c.flag(99, "enable_gqa", false);
         if (c.number(4, "dropout_p", 0) > 0) throw Unsupported("dropout");
         return {scaled_dot_product_attention(q, k, v, o)};
       }},
      {"l1_loss",
       loss([](const auto& x, const auto& t, Call& c) { return l1_loss(x, t, reduction(c)); })},
      {"mse_loss",
       loss([](const auto& x, const auto& t, Call& c) { return mse_loss(x, t, reduction(c)); })},
      {"smooth_l1_loss", loss([](const auto& x, const auto& t, Call& c) {
         return smooth_l1_loss(x, t, reduction(c), c.number(99, "beta", 1));
       })},
      {"kl_div", loss([](const auto& x, const auto& t, Call& c) {
         const bool log = c.flag(99, "log_target", false);
         if (c.text(99, "reduction", "mean") == "batchmean") return kl_div_batchmean(x, t, log);
         return kl_div(x, t, reduction(c), log);
       })},
      {"binary_cross_entropy_with_logits", loss([](const auto& x, const auto& t, Call& c) {
         const at::Tensor weight = c.t(2, "weight");
         return binary_cross_entropy_with_logits(x, t, weight, reduction(c), c.t(99, "pos_weight"));
       })},
      {"nll_loss", loss([](const auto& x, const auto& t, Call& c) {
         const CrossEntropyOptions o = entropy_options(c);
         return nll_loss(x, t.data(), o.weight, o.ignore_index, o.reduction);
       })},
      {"cross_entropy", loss([](const auto& x, const auto& t, Call& c) {
         const CrossEntropyOptions o = entropy_options(c);
         return t.data().is_floating_point() ? cross_entropy(x, t, o)
                                             : cross_entropy(x, t.data(), o);
       })},
      {"cosine_similarity", loss([](const auto& x, const auto& t, Call& c) {
         const int64_t d = c.whole(2, "dim", 1);
         return cosine_similarity(x, t, d, c.number(3, "eps", 1e-8));
       })},
      {"pairwise_distance", loss([](const auto& x, const auto& t, Call& c) {
         const double p = c.number(2, "p", 2), eps = c.number(3, "eps", 1e-6);
         return pairwise_distance(x, t, p, eps, c.flag(4, "keepdim", false));
       })},
      {"triplet_margin_loss", [](Call& c) -> Results {
         const Variable a = c.v(0), p = c.v(1), n = c.v(2);
         TripletOptions o;
         o.margin = c.number(3, "margin", 1);
         o.p = c.number(4, "p", 2);
         o.eps = c.number(5, "eps", 1e-6);
         o.swap = c.flag(6, "swap", false);
         return {triplet_margin_loss(a, p, n, o, reduction(c))};
       }}};
}

}  // namespace lathe::test
