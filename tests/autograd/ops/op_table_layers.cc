// Rows of the op table for layers that op_table_images.cc does not have: convolutions and pools of
// sequences, transposed convolutions, resizing, norms, attention and fused linear layers.
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/images.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;
using Sizes = std::vector<int64_t>;

void add_convolution_forms(std::vector<OpCase>& t) {
  t.push_back({"conv1d",
               "",
               {{{2, 4, 7}}, {{6, 2, 3}}, {{6}}},
               [](V v) {
                 return conv1d(v[0], v[1], v[2],
                               {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
               },
               [](T x) { return torch::conv1d(x[0], x[1], x[2], 2, at::IntArrayRef{1}, 2, 2); }});
  t.back().low_scale = 8;
  t.push_back({"conv1d",
               "plain",
               {{{1, 2, 5}}, {{3, 2, 2}}},
               [](V v) { return conv1d(v[0], v[1]); },
               [](T x) { return torch::conv1d(x[0], x[1]); }});
  t.push_back({"conv_transpose2d",
               "",
               {{{2, 4, 3, 2}}, {{4, 3, 2, 3}}, {{6}}},
               [](V v) {
                 return conv_transpose2d(v[0], v[1], v[2],
                                         {.stride = {2, 3},
                                          .padding = 1,
                                          .output_padding = {1, 0},
                                          .groups = 2,
                                          .dilation = {1, 2}});
               },
               [](T x) {
                 return torch::conv_transpose2d(x[0], x[1], x[2], {2, 3}, {1, 1}, {1, 0}, 2,
                                                {1, 2});
               }});
  t.back().low_scale = 8;
  t.push_back({"conv_transpose2d",
               "plain",
               {{{1, 2, 3, 3}}, {{2, 2, 2, 2}}},
               [](V v) { return conv_transpose2d(v[0], v[1]); },
               [](T x) { return torch::conv_transpose2d(x[0], x[1]); }});
  const Sizes x{2, 3, 9};
  t.push_back({"max_pool1d",
               "",
               {{x}},
               [](V v) { return max_pool1d(v[0], 3, 2, 1); },
               [](T x) { return torch::max_pool1d(x[0], 3, 2, 1); }});
  t.push_back({"max_pool1d",
               "a last window beyond the end",
               {{x}},
               [](V v) { return max_pool1d(v[0], 4, 4, 1, 1, true); },
               [](T x) { return torch::max_pool1d(x[0], 4, 4, 1, 1, true); }});
  t.push_back({"avg_pool1d",
               "",
               {{x}},
               [](V v) { return avg_pool1d(v[0], 3, 2, 1); },
               [](T x) { return torch::avg_pool1d(x[0], 3, 2, 1); }});
  t.push_back({"avg_pool1d",
               "padding that does not count",
               {{x}},
               [](V v) { return avg_pool1d(v[0], 4, 4, 1, true, false); },
               [](T x) { return torch::avg_pool1d(x[0], 4, 4, 1, true, false); }});
  t.push_back({"adaptive_avg_pool1d",
               "",
               {{x}},
               [](V v) { return adaptive_avg_pool1d(v[0], 4); },
               [](T x) { return torch::adaptive_avg_pool1d(x[0], 4); }});
  t.push_back({"im2col",
               "",
               {{{2, 2, 4, 5}}},
               [](V v) { return im2col(v[0], {2, 3}, {1, 2}, {1, 0}, {2, 1}); },
               [](T x) { return torch::im2col(x[0], {2, 3}, {1, 2}, {1, 0}, {2, 1}); }});
  t.push_back({"col2im",
               "",
               {{{2, 12, 3}}},
               [](V v) { return col2im(v[0], {4, 5}, {2, 3}, {1, 2}, {1, 0}, {2, 1}); },
               [](T x) { return torch::col2im(x[0], {4, 5}, {2, 3}, {1, 2}, {1, 0}, {2, 1}); }});
}

void add_sizes(std::vector<OpCase>& t) {
  struct Case {
    const char* label;
    Pair size;
    bool align;
  };
  for (const Case& c :
       {Case{"larger", {5, 7}, false}, {"smaller", {2, 3}, false}, {"corners", {5, 2}, true}}) {
    const Sizes x{2, 2, 3, 4};
    const auto sizes = [c] { return std::vector<int64_t>{c.size.h, c.size.w}; };
    t.push_back({"interpolate",
                 std::string(c.label) + ", bilinear",
                 {{x}},
                 [c](V v) { return interpolate(v[0], c.size, Interpolation::bilinear, c.align); },
                 [=](T x) { return at::upsample_bilinear2d(x[0], sizes(), c.align); }});
    t.push_back({"interpolate_backward",
                 std::string(c.label) + ", bilinear",
                 {{{2, 2, c.size.h, c.size.w}}},
                 [c](V v) {
                   const Variable zero = Variable::parameter(torch::zeros(
                       {2, 2, 3, 4}, at::TensorOptions(v[0].dtype()).device(device_of(v))));
                   const Variable y = interpolate(zero, c.size, Interpolation::bilinear, c.align);
                   return grad(y, {zero}, v[0], /*create_graph=*/true)[0];
                 },
                 [=](T x) {
                   return at::upsample_bilinear2d_backward(x[0], sizes(), {2, 2, 3, 4}, c.align);
                 }});
    if (c.align) continue;
    t.push_back({"interpolate",
                 std::string(c.label) + ", nearest",
                 {{x}},
                 [c](V v) { return interpolate(v[0], c.size); },
                 [=](T x) { return at::upsample_nearest2d(x[0], sizes()); }});
  }
  t.push_back({"interpolate",
               "by scales",
               {{{1, 2, 3, 4}}},
               [](V v) { return interpolate_by(v[0], 1.7, 0.6, Interpolation::bilinear); },
               [](T x) { return at::upsample_bilinear2d(x[0], {5, 2}, false, 1.7, 0.6); }});
  t.push_back({"interpolate",
               "a sequence",
               {{{1, 2, 5}}},
               [](V v) { return interpolate(v[0], 8, Interpolation::bilinear); },
               [](T x) { return at::upsample_linear1d(x[0], {8}, false); }});
  t.push_back({"interpolate",
               "no batch",
               {{{0, 2, 3, 4}}},
               [](V v) { return interpolate(v[0], 6); },
               [](T x) { return at::upsample_nearest2d(x[0], {6, 6}); }});
  t.push_back({"group_norm",
               "of an image",
               {{{2, 6, 3, 2}}, {{6}}, {{6}}},
               [](V v) { return group_norm(v[0], 3, v[1], v[2]); },
               [](T x) { return torch::group_norm(x[0], 3, x[1], x[2]); }});
  t.push_back({"group_norm",
               "of features, scale alone",
               {{{3, 6}}, {{6}}},
               [](V v) { return group_norm(v[0], 2, v[1], {}, 1e-3); },
               [](T x) { return torch::group_norm(x[0], 2, x[1], {}, 1e-3); }});
  t.push_back({"group_norm",
               "no batch",
               {{{0, 4, 3}}},
               [](V v) { return group_norm(v[0], 2); },
               [](T x) { return x[0] * 1; }});
  t.push_back(
      {"instance_norm",
       "",
       {{{2, 3, 4, 2}}, {{3}}, {{3}}},
       [](V v) { return instance_norm(v[0], v[1], v[2]); },
       [](T x) { return torch::instance_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false); }});
}

void add_attention(std::vector<OpCase>& t) {
  const auto some = [](at::Device device) {  // the second query sees no key
    return torch::tensor({{true, false, true, true},
                          {false, false, false, false},
                          {false, true, false, false}})
        .to(device);
  };
  struct Case {
    const char* label;
    AttentionOptions options;
    bool boolean = false, additive = false;
    int64_t heads = 2;  // heads of keys and values
  };
  AttentionOptions causal, scaled, shared;
  causal.is_causal = true;
  scaled.scale = 0.3;
  shared.enable_gqa = true;
  for (const Case& c : std::vector<Case>{{"plain", {}},
                                         {"causal", causal},
                                         {"scale", scaled},
                                         {"boolean mask", {}, true},
                                         {"additive mask", {}, false, true},
                                         {"shared heads", shared, false, false, 1}}) {
    std::vector<Input> in{{{2, 2, 3, 4}}, {{2, c.heads, 4, 4}}, {{2, c.heads, 4, 5}}};
    if (c.additive) in.push_back({{2, 1, 3, 4}});
    t.push_back({"scaled_dot_product_attention", c.label, in,
                 [c, some](V v) {
                   AttentionOptions o = c.options;
                   if (c.boolean) o.mask = Variable(some(device_of(v)));
                   if (c.additive) o.mask = v[3];
                   return scaled_dot_product_attention(v[0], v[1], v[2], o);
                 },
                 [c, some](T x) {
                   at::Tensor s =
                       x[0].matmul(x[1].transpose(-2, -1)) * c.options.scale.value_or(0.5);
                   if (c.options.is_causal)
                     s = s.masked_fill(torch::ones({3, 4}, at::kBool).triu(1), -INFINITY);
                   if (c.additive) s = s + x[3];
                   if (!c.boolean) return s.softmax(-1).matmul(x[2]);
                   const at::Tensor blind = torch::tensor({{false}, {true}, {false}});
                   s = s.masked_fill(some(at::kCPU).logical_not(), -INFINITY).masked_fill(blind, 0);
                   return s.softmax(-1).masked_fill(blind, 0).matmul(x[2]);
                 }});
    t.back().low_scale = 8;  // two matmuls and a softmax
  }
}

at::Tensor grouped(T x, int64_t heads, int64_t kv_heads, const ScoreOptions& o = {}) {
  const auto split = [&](const at::Tensor& y, int64_t n) {
    return y.view({y.size(0), y.size(1), n, y.size(2) / n})
        .transpose(1, 2)
        .repeat_interleave(heads / n, 1);
  };
  const int64_t time = x[0].size(1), keys = x[1].size(1), before = keys - time;
  const at::Tensor q = split(x[0], heads), all = torch::ones({time, keys}, at::kBool);
  const at::Tensor future = all.triu(before + 1);
  const double scale = o.scale > 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor s = q.matmul(split(x[1], kv_heads).transpose(-2, -1)) * scale;
  if (o.softcap > 0) s = torch::tanh(s / o.softcap) * o.softcap;
  const at::Tensor hidden =
      o.window > 0 ? future.logical_or(all.tril(before - o.window).to(q.device())) : future;
  const at::Tensor y = s.masked_fill(hidden, -INFINITY).softmax(-1).matmul(split(x[2], kv_heads));
  return y.transpose(1, 2).reshape(x[0].sizes());
}

void add_grouped(std::vector<OpCase>& t) {
  struct Case {
    const char* label;
    int64_t heads, kv_heads, batch, time, width;
    int64_t before = 0;  // keys before the position of the first query
  };
  for (const auto& [c, o] :
       {std::pair(Case{"groups of two", 4, 2, 2, 5, 4}, ScoreOptions()),
        {Case{"as many key heads", 2, 2, 1, 3, 6}, {}},
        {Case{"longer than a block", 3, 1, 1, 131, 8}, {}},
        {Case{"keys before the queries", 4, 2, 2, 3, 4, 4}, {}},
        {Case{"keys before the queries, longer than a block", 3, 1, 1, 70, 8, 130}, {}},
        {Case{"keys before the window of the queries", 2, 1, 1, 70, 8, 130}, {.window = 66}},
        {Case{"window", 4, 2, 2, 5, 4}, {.window = 3}},
        {Case{"window of two keys", 2, 1, 1, 4, 4}, {.window = 2}},
        {Case{"window, longer than a block", 3, 1, 1, 131, 8}, {.window = 66}},
        {Case{"scale", 2, 2, 2, 5, 4}, {.scale = 0.3}},
        {Case{"capped scores", 2, 1, 2, 5, 4}, {.scale = 2, .softcap = 1.5}},
        {Case{"capped scores and window, longer than a block", 2, 1, 2, 131, 8},
         {.window = 20, .scale = 0.5, .softcap = 2}}}) {
    t.push_back(
        {"grouped_attention",
         c.label,
         {{{c.batch, c.time, c.heads * c.width}},
          {{c.batch, c.before + c.time, c.kv_heads * c.width}},
          {{c.batch, c.before + c.time, c.kv_heads * c.width}}},
         [c, o](V v) { return attention(v[0], v[1], v[2], c.heads, c.kv_heads, {}, {}, o); },
         [c, o](T x) { return grouped(x, c.heads, c.kv_heads, o); }});
    t.back().low_scale = 8;
    t.back().differences = c.time < 10;
  }
  // Attention depends only on the differences of angles. The angles are unevenly spaced, so that
  // the differences vary.
  const auto angles_of = [](int64_t batch, int64_t time, int64_t half) {
    return torch::arange(batch * time * half, at::kDouble)
        .square()
        .remainder(6.1)
        .view({batch, time, half});
  };
  const auto rope_table_of = [](const at::Tensor& angles) {
    return torch::cat({angles.cos(), angles.sin()}, -1);
  };
  // A rotation is a multiplication of complex numbers.
  const auto rotated = [](const at::Tensor& x, const at::Tensor& angles) {
    const int64_t half = angles.size(-1);
    const at::Tensor y =
        x.view({x.size(0), x.size(1), x.size(2) / (2 * half), 2, half}).to(at::kDouble);
    const at::Tensor z = torch::complex(y.select(3, 0), y.select(3, 1)) *
                         torch::complex(angles.cos(), angles.sin()).unsqueeze(-2);
    return torch::cat({torch::real(z), torch::imag(z)}, -1).view(x.sizes());
  };
  for (const bool rows : {false, true}) {
    const at::Tensor own = rows ? angles_of(2, 3, 3) : angles_of(2, 3, 3)[1];
    t.push_back({"rotate",
                 rows ? "positions of each row" : "",
                 {{{2, 3, 12}}},
                 [=](V v) { return rotate(v[0], rope_table_of(own).to(device_of(v))); },
                 [=](T x) { return rotated(x[0], own); }});
  }
  for (const Case& c :
       {Case{"rotated", 4, 2, 2, 5, 4}, Case{"rotated, positions of each row", 2, 1, 2, 3, 6},
        Case{"rotated, longer than a block", 3, 1, 1, 131, 34}}) {
    const at::Tensor all = angles_of(c.batch, c.time, c.width / 2),
                     own = c.width == 6 ? all : all[0];
    t.push_back({"grouped_attention",
                 c.label,
                 {{{c.batch, c.time, c.heads * c.width}},
                  {{c.batch, c.time, c.kv_heads * c.width}},
                  {{c.batch, c.time, c.kv_heads * c.width}}},
                 [=](V v) {
                   return attention(v[0], v[1], v[2], c.heads, c.kv_heads, {},
                                    rope_table_of(own).to(device_of(v)));
                 },
                 [=](T x) {
                   return grouped({rotated(x[0], own), rotated(x[1], own), x[2].to(at::kDouble)},
                                  c.heads, c.kv_heads);
                 }});
    t.back().low_scale = 8;
    t.back().differences = c.time < 10;
  }
  for (const auto& [label, rows, in, out, biased] :
       {std::tuple("", 5, 4, 6, true), std::tuple("blocks that do not divide", 90, 67, 130, false),
        std::tuple("deeper than a panel", 40, 30, 1100, true)}) {
    std::vector<Input> inputs{{{rows, in}}, {{out, in}}, {{out / 3, in}}, {{out / 3, in}}};
    if (biased) inputs.insert(inputs.end(), {{{out}}, {{out / 3}}, {{out / 3}}});
    t.push_back({"linear_qkv", label, inputs,
                 [biased](V v) {
                   const auto [q, k, y] = linear_qkv(
                       v[0], {v[1], v[2], v[3]},
                       biased ? std::array{v[4], v[5], v[6]} : std::array<Variable, 3>{});
                   return cat({q, k, y}, -1);
                 },
                 [biased](T x) {
                   std::vector<at::Tensor> y;
                   for (size_t i = 1; i < 4; ++i)
                     y.push_back(torch::linear(x[0], x[i], biased ? x[3 + i] : at::Tensor()));
                   return torch::cat(y, -1);
                 }});
    t.back().differences = rows < 10;
  }
  t.push_back({"linear_qkv",
               "keys alone",
               {{{5, 4}}, {{6, 4}}, {{3, 4}}, {{3, 4}}},
               [](V v) { return linear_qkv(v[0], {v[1], v[2], v[3]})[1]; },
               [](T x) { return torch::linear(x[0], x[2]); }});
  for (const auto& [label, rows, hidden] :
       {std::tuple("", 5, 6), std::tuple("blocks that do not divide", 90, 67)}) {
    t.push_back(
        {"linear_swiglu",
         label,
         {{{rows, 4}}, {{hidden, 4}}, {{hidden, 4}}},
         [](V v) { return linear_swiglu(v[0], v[1], v[2]); },
         [](T x) { return torch::silu(torch::linear(x[0], x[1])) * torch::linear(x[0], x[2]); }});
    t.back().differences = rows < 10;
    t.back().low_scale = 8;  // two matmuls, each rounded
  }
}

}  // namespace

std::vector<OpCase> layer_rows() {
  std::vector<OpCase> t;
  add_convolution_forms(t);
  add_sizes(t);
  add_attention(t);
  add_grouped(t);
  return t;
}

}  // namespace lathe::test
