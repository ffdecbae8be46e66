// The table's rows of shapes and places, of sequences and images in further forms, and of attention.
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/images.h"
#include "autograd/ops/shapes.h"
#include "tests/catch.h"
#include "tests/op_case.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;
using Sizes = std::vector<int64_t>;

at::Tensor longs(std::vector<int64_t> values, at::IntArrayRef shape, at::Device device = at::kCPU) {
  return torch::tensor(values, at::kLong).reshape(shape).to(device);
}
at::Device device_of(V v) { return v[0].data().device(); }

void add_views(std::vector<OpCase>& t) {
  const auto add = [&t](const char* op, const char* label, Sizes x, auto ours, auto oracle) {
    t.push_back(
        {op, label, {{std::move(x)}}, [ours](V v) { return ours(v[0]); }, [oracle](T x) { return oracle(x[0]); }});
  };
  using X = const Variable&;
  using A = const at::Tensor&;
  add(
      "squeeze", "all", {1, 2, 1, 3}, [](X x) { return squeeze(x); }, [](A x) { return x.squeeze(); });
  add(
      "squeeze", "a dim", {1, 2, 1, 3}, [](X x) { return squeeze(x, -2); }, [](A x) { return x.squeeze(-2); });
  add(
      "squeeze", "a dim of more", {1, 2}, [](X x) { return squeeze(x, 1); }, [](A x) { return x.squeeze(1); });
  add(
      "squeeze", "0-dim", {}, [](X x) { return squeeze(x, 0); }, [](A x) { return x.squeeze(0); });
  add(
      "squeeze", "empty", {0, 1}, [](X x) { return squeeze(x); }, [](A x) { return x.squeeze(); });
  for (const int64_t n : {2, 3, 7}) {
    add(
        "chunk",
        n == 2   ? "equal"
        : n == 3 ? "a shorter last"
                 : "more than there are",
        {4, 2},
        [n](X x) {
          const auto parts = chunk(x, n);
          return cat({parts.back(), parts[0] * 2.0}, 0) * static_cast<double>(parts.size());
        },
        [n](A x) {
          const auto parts = x.chunk(n);
          return torch::cat({parts.back(), parts[0] * 2}, 0) * static_cast<double>(parts.size());
        });
  }
  add(
      "chunk", "empty", {0, 2}, [](X x) { return chunk(x, 3)[2]; }, [](A x) { return x.chunk(3)[2]; });
  add(
      "split", "by one size", {5, 2}, [](X x) { return split(x, 2)[2] + split(x, 2)[0]; },
      [](A x) { return x.split(2)[2] + x.split(2)[0]; });
  add(
      "unfold", "overlapping", {2, 7}, [](X x) { return unfold(x, 1, 3, 2); }, [](A x) { return x.unfold(1, 3, 2); });
  add(
      "unfold", "first dim", {5, 2}, [](X x) { return unfold(x, 0, 2, 3); }, [](A x) { return x.unfold(0, 2, 3); });
  add(
      "unfold_backward", "overlapping", {2, 3, 3},
      [](X x) {
        return unfold_backward(x, {2, 7}, 1, 3, 2);
      },
      [](A x) {
        return at::unfold_backward(x, {2, 7}, 1, 3, 2);
      });
  add(
      "diagonal", "", {3, 4}, [](X x) { return diagonal(x); }, [](A x) { return x.diagonal(); });
  add(
      "diagonal", "last dims, above", {2, 3, 4}, [](X x) { return diagonal(x, 1, -2, -1); },
      [](A x) { return x.diagonal(1, -2, -1); });
  add(
      "diagonal", "beyond", {2, 2}, [](X x) { return diagonal(x, 3); }, [](A x) { return x.diagonal(3); });
  add(
      "diagonal_backward", "", {2, 3},
      [](X x) {
        return diagonal_backward(x, {2, 3, 4}, 1, 1, 2);
      },
      [](A x) {
        return at::diagonal_backward(x, {2, 3, 4}, 1, 1, 2);
      });
  add(
      "flip", "two dims", {2, 3, 2},
      [](X x) {
        return flip(x, {0, -1});
      },
      [](A x) {
        return x.flip({0, -1});
      });
  add(
      "flip", "empty", {0, 3}, [](X x) { return flip(x, 0); }, [](A x) { return x.flip(0); });
  add(
      "roll", "dims", {3, 4},
      [](X x) {
        return roll(x, {1, -2}, {0, 1});
      },
      [](A x) {
        return x.roll({1, -2}, {0, 1});
      });
  add(
      "roll", "all", {3, 4}, [](X x) { return roll(x, 5); }, [](A x) { return x.roll(5); });
  add(
      "tril", "", {2, 4, 3}, [](X x) { return tril(x, -1); }, [](A x) { return x.tril(-1); });
  add(
      "tril", "empty", {0, 3}, [](X x) { return tril(x); }, [](A x) { return x.tril(); });
  add(
      "pad", "a value", {2, 3},
      [](X x) {
        return pad(x, {1, 2, 0, 1}, PadMode::constant, 0.5);
      },
      [](A x) {
        return torch::constant_pad_nd(x, {1, 2, 0, 1}, 0.5);
      });
  add(
      "pad", "cut", {2, 5},
      [](X x) {
        return pad(x, {-1, 2});
      },
      [](A x) {
        return torch::constant_pad_nd(x, {-1, 2});
      });
  for (const auto& [mode, name] :
       {std::pair{PadMode::reflect, "reflect"}, {PadMode::replicate, "replicate"}, {PadMode::circular, "circular"}}) {
    add(
        "pad", name, {1, 2, 3, 4},
        [mode = mode](X x) {
          return pad(x, {2, 1, 1, 2}, mode);
        },
        [name = name](A x) {
          return at::pad(x, at::IntArrayRef{2, 1, 1, 2}, name);
        });
  }
  add(
      "stack", "with itself", {2, 3},
      [](X x) {
        return stack({x, x * 2.0}, -1);
      },
      [](A x) {
        return torch::stack({x, x * 2}, -1);
      });
  add(
      "stack", "0-dim", {},
      [](X x) {
        return stack({x, x, x});
      },
      [](A x) {
        return torch::stack({x, x, x});
      });
  t.push_back(
      {"outer", "", {{{3}}, {{2}}}, [](V v) { return outer(v[0], v[1]); }, [](T x) { return x[0].outer(x[1]); }});
  t.push_back(
      {"bmm", "", {{{2, 3, 2}}, {{2, 2, 4}}}, [](V v) { return bmm(v[0], v[1]); }, [](T x) { return x[0].bmm(x[1]); }});
  t.push_back({"bmm",
               "no batch",
               {{{0, 3, 2}}, {{0, 2, 4}}},
               [](V v) { return bmm(v[0], v[1]); },
               [](T x) { return x[0].bmm(x[1]); }});
}

void add_places(std::vector<OpCase>& t) {
  t.push_back({"index_select",
               "repeated",
               {{{3, 4}}},
               [](V v) {
                 return index_select(v[0], 1, longs({3, 0, 3}, {3}, device_of(v)));
               },
               [](T x) {
                 return x[0].index_select(1, longs({3, 0, 3}, {3}));
               }});
  t.push_back({"index_select",
               "none",
               {{{3, 4}}},
               [](V v) { return index_select(v[0], 0, longs({}, {0}, device_of(v))); },
               [](T x) { return x[0].index_select(0, longs({}, {0})); }});
  t.push_back({"index_select",
               "0-dim",
               {{{}}},
               [](V v) { return index_select(v[0], 0, longs({0}, {1}, device_of(v))); },
               [](T x) { return x[0].index_select(0, longs({0}, {1})); }});
  t.push_back({"index_add",
               "repeated",
               {{{3, 4}}, {{3, 3}}},
               [](V v) {
                 return index_add(v[0], 1, longs({3, 0, 3}, {3}, device_of(v)), v[1]);
               },
               [](T x) {
                 return x[0].index_add(1, longs({3, 0, 3}, {3}), x[1]);
               }});
  t.push_back({"scatter_add",
               "repeated",
               {{{3, 4}}, {{3, 3}}},
               [](V v) {
                 return scatter_add(v[0], 1, longs({3, 3, 0, 1, 2, 1, 0, 0, 0}, {3, 3}, device_of(v)), v[1]);
               },
               [](T x) {
                 return x[0].scatter_add(1, longs({3, 3, 0, 1, 2, 1, 0, 0, 0}, {3, 3}), x[1]);
               }});
  t.push_back({"scatter_add",
               "a part of src",
               {{{3, 4}}, {{3, 5}}},
               [](V v) {
                 return scatter_add(v[0], 0, longs({2, 2, 0, 1}, {2, 2}, device_of(v)), v[1]);
               },
               [](T x) {
                 return x[0].scatter_add(0, longs({2, 2, 0, 1}, {2, 2}), x[1].slice(0, 0, 2).slice(1, 0, 2));
               }});
  t.push_back({"gather",
               "a part of x",
               {{{3, 4}}},
               [](V v) {
                 return gather(v[0], 1, longs({3, 3, 0, 1}, {2, 2}, device_of(v)));
               },
               [](T x) {
                 return x[0].gather(1, longs({3, 3, 0, 1}, {2, 2}));
               }});
}

void add_convolutions(std::vector<OpCase>& t) {
  t.push_back({"conv1d",
               "",
               {{{2, 4, 7}}, {{6, 2, 3}}, {{6}}},
               [](V v) { return conv1d(v[0], v[1], v[2], {.stride = 2, .padding = 1, .dilation = 2, .groups = 2}); },
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
                 return conv_transpose2d(
                     v[0], v[1], v[2],
                     {.stride = {2, 3}, .padding = 1, .output_padding = {1, 0}, .groups = 2, .dilation = {1, 2}});
               },
               [](T x) {
                 return torch::conv_transpose2d(x[0], x[1], x[2], {2, 3}, {1, 1}, {1, 0}, 2, {1, 2});
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
  t.push_back({"avg_pool1d",
               "",
               {{x}},
               [](V v) { return avg_pool1d(v[0], 3, 2, 1); },
               [](T x) { return torch::avg_pool1d(x[0], 3, 2, 1); }});
  t.push_back({"adaptive_avg_pool1d",
               "",
               {{x}},
               [](V v) { return adaptive_avg_pool1d(v[0], 4); },
               [](T x) { return torch::adaptive_avg_pool1d(x[0], 4); }});
  t.push_back({"im2col",
               "",
               {{{2, 2, 4, 5}}},
               [](V v) {
                 return im2col(v[0], {2, 3}, {1, 2}, {1, 0}, {2, 1});
               },
               [](T x) {
                 return torch::im2col(x[0], {2, 3}, {1, 2}, {1, 0}, {2, 1});
               }});
  t.push_back({"col2im",
               "",
               {{{2, 12, 3}}},
               [](V v) {
                 return col2im(v[0], {4, 5}, {2, 3}, {1, 2}, {1, 0}, {2, 1});
               },
               [](T x) {
                 return torch::col2im(x[0], {4, 5}, {2, 3}, {1, 2}, {1, 0}, {2, 1});
               }});
}

void add_sizes(std::vector<OpCase>& t) {
  struct Case {
    const char* label;
    Pair size;
    bool align;
  };
  for (const Case& c : {Case{"larger", {5, 7}, false}, {"smaller", {2, 3}, false}, {"corners", {5, 2}, true}}) {
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
                   const Variable zero = Variable::parameter(v[0].data().new_zeros({2, 2, 3, 4}));
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
               [](T x) {
                 return at::upsample_bilinear2d(x[0], {5, 2}, false, 1.7, 0.6);
               }});
  t.push_back({"interpolate",
               "a sequence",
               {{{1, 2, 5}}},
               [](V v) { return interpolate(v[0], 8, Interpolation::bilinear); },
               [](T x) { return at::upsample_linear1d(x[0], {8}, false); }});
  t.push_back({"interpolate",
               "no batch",
               {{{0, 2, 3, 4}}},
               [](V v) { return interpolate(v[0], 6); },
               [](T x) {
                 return at::upsample_nearest2d(x[0], {6, 6});
               }});
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
  t.push_back(
      {"group_norm", "no batch", {{{0, 4, 3}}}, [](V v) { return group_norm(v[0], 2); }, [](T x) { return x[0] * 1; }});
  t.push_back({"instance_norm",
               "",
               {{{2, 3, 4, 2}}, {{3}}, {{3}}},
               [](V v) { return instance_norm(v[0], v[1], v[2]); },
               [](T x) { return torch::instance_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false); }});
}

void add_attention(std::vector<OpCase>& t) {
  const auto some = [](at::Device device) {  // the second query may look at nothing
    return torch::tensor({{true, false, true, true}, {false, false, false, false}, {false, true, false, false}})
        .to(device);
  };
  struct Case {
    const char* label;
    AttentionOptions options;
    bool boolean = false, additive = false;
    int64_t heads = 2;  // of keys and values
  };
  AttentionOptions causal, scaled, shared;
  causal.is_causal = true, scaled.scale = 0.3, shared.enable_gqa = true;
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
                   at::Tensor s = x[0].matmul(x[1].transpose(-2, -1)) * c.options.scale.value_or(0.5);
                   if (c.options.is_causal) s = s.masked_fill(torch::ones({3, 4}, at::kBool).triu(1), -INFINITY);
                   if (c.additive) s = s + x[3];
                   if (!c.boolean) return s.softmax(-1).matmul(x[2]);
                   const at::Tensor blind = torch::tensor({{false}, {true}, {false}});
                   s = s.masked_fill(some(at::kCPU).logical_not(), -INFINITY).masked_fill(blind, 0);
                   return s.softmax(-1).masked_fill(blind, 0).matmul(x[2]);
                 }});
    t.back().low_scale = 8;  // two products and a softmax
  }
}

}  // namespace

std::vector<OpCase> shape_rows() {
  std::vector<OpCase> t;
  add_views(t);
  add_places(t);
  add_convolutions(t);
  add_sizes(t);
  add_attention(t);
  return t;
}

}  // namespace lathe::test
