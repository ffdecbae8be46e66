// Rows of the op table for convolutions, pools, batch norm and recurrent cells.
#include "autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;

at::Tensor reference_conv(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                          const Conv2dOptions& o) {
  return torch::conv2d(x, w, bias, {o.stride.h, o.stride.w},
                       at::IntArrayRef{o.padding.h, o.padding.w}, {o.dilation.h, o.dilation.w},
                       o.groups);
}
/// Returns LibTorch's gradient of the function f of a tensor of zeros of these sizes, for the
/// cotangent `dy`. The result is differentiable.
template <class F>
at::Tensor reference_adjoint(at::IntArrayRef sizes, const at::Tensor& dy, F&& f) {
  const at::AutoGradMode on(true);  // the harness also calls this function without gradients
  const at::Tensor zero = torch::zeros(sizes, dy.options().requires_grad(true));
  return torch::autograd::grad({f(zero)}, {zero}, {dy}, true, /*create_graph=*/true)[0];
}

void add_convolutions(std::vector<OpCase>& t) {
  struct Case {
    const char* label;
    std::vector<int64_t> x, w;
    Conv2dOptions options;
    bool differences = true;
  };
  const std::vector<Case> cases{
      {"3 x 3", {2, 2, 3, 4}, {3, 2, 3, 3}, {.padding = 1}},
      {"stride, no padding", {1, 2, 5, 6}, {2, 2, 3, 2}, {.stride = {2, 3}}},
      {"dilation", {1, 1, 5, 6}, {2, 1, 3, 2}, {.padding = {2, 1}, .dilation = {2, 3}}},
      {"groups", {1, 4, 3, 4}, {4, 2, 2, 2}, {.stride = 2, .padding = 1, .groups = 2}},
      {"a group for each channel", {2, 3, 3, 3}, {3, 1, 2, 2}, {.groups = 3}},
      {"1 x 1, stride", {2, 3, 3, 4}, {2, 3, 1, 1}, {.stride = 2}},
      {"empty batch", {0, 2, 3, 4}, {3, 2, 3, 3}, {.padding = 1}},
      {"many channels", {17, 19, 9, 8}, {33, 19, 3, 3}, {.padding = 1}, false},
  };
  for (const Case& c : cases) {
    const Conv2dOptions o = c.options;
    const auto y = reference_conv(torch::zeros(c.x), torch::zeros(c.w), {}, o).sizes().vec();
    OpCase conv{"conv2d",
                c.label,
                {{c.x}, {c.w}, {{c.w[0]}}},
                [o](V v) { return conv2d(v[0], v[1], v[2], o); },
                [o](T x) { return reference_conv(x[0], x[1], x[2], o); }};
    OpCase input_grad{"conv2d_input_grad",
                      c.label,
                      {{y}, {c.w}},
                      [o, c](V v) { return conv2d_input_grad(v[0], v[1], c.x, o); },
                      [o, c](T x) {
                        return reference_adjoint(c.x, x[0], [&](const at::Tensor& in) {
                          return reference_conv(in, x[1], {}, o);
                        });
                      }};
    OpCase weight_grad{"conv2d_weight_grad",
                       c.label,
                       {{y}, {c.x}},
                       [o, c](V v) { return conv2d_weight_grad(v[0], v[1], c.w, o); },
                       [o, c](T x) {
                         return reference_adjoint(c.w, x[0], [&](const at::Tensor& w) {
                           return reference_conv(x[1], w, {}, o);
                         });
                       }};
    for (OpCase* row : {&conv, &input_grad, &weight_grad}) {
      row->differences = c.differences;
      if (!c.differences) row->low_scale = 8;  // each gradient of a weight sums 1224 products
      t.push_back(*row);
    }
  }
  t.push_back({"conv2d",
               "no bias",
               {{{1, 2, 3, 3}}, {{2, 2, 2, 2}}},
               [](V v) { return conv2d(v[0], v[1]); },
               [](T x) { return torch::conv2d(x[0], x[1]); }});
  t.push_back({"conv2d",
               "constant input",
               {{{2, 2, 3, 4}, -2, 2, false}, {{3, 2, 3, 3}}},
               [](V v) { return conv2d(v[0], v[1]); },
               [](T x) { return torch::conv2d(x[0], x[1]); }});
  t.push_back({"conv2d",
               "constant weight",
               {{{2, 2, 3, 4}}, {{3, 2, 3, 3}, -2, 2, false}, {{3}}},
               [](V v) { return conv2d(v[0], v[1], v[2]); },
               [](T x) { return torch::conv2d(x[0], x[1], x[2]); }});
}

void add_pools(std::vector<OpCase>& t) {
  struct Case {
    const char* label;
    std::vector<int64_t> x;
    Pair kernel, stride, padding, dilation = 1;
    bool ceil_mode = false, count_include_pad = true;
  };
  const std::vector<Case> cases{
      {"side by side", {2, 3, 6, 4}, 2, 2, 0},
      {"overlapping, padded", {2, 2, 7, 6}, {3, 2}, {2, 1}, {1, 1}},
      {"empty batch", {0, 2, 6, 4}, 2, 2, 0},
      {"dilated", {1, 2, 7, 8}, {2, 3}, 1, 0, {2, 3}},
      {"a last window beyond the end", {1, 2, 6, 7}, {3, 2}, 2, {1, 0}, 1, true},
      {"padding that does not count", {2, 2, 5, 6}, {3, 2}, {2, 1}, {1, 1}, 1, true, false}};
  for (const Case& c : cases) {
    t.push_back({"max_pool2d",
                 c.label,
                 {{c.x}},
                 [c](V v) {
                   return max_pool2d(v[0], c.kernel, c.stride, c.padding, c.dilation, c.ceil_mode);
                 },
                 [c](T x) {
                   return torch::max_pool2d(x[0], {c.kernel.h, c.kernel.w},
                                            {c.stride.h, c.stride.w}, {c.padding.h, c.padding.w},
                                            {c.dilation.h, c.dilation.w}, c.ceil_mode);
                 }});
    if (c.dilation.h != 1) continue;
    const auto pool = [c](const at::Tensor& x) {
      return torch::avg_pool2d(x, {c.kernel.h, c.kernel.w}, {c.stride.h, c.stride.w},
                               {c.padding.h, c.padding.w}, c.ceil_mode, c.count_include_pad);
    };
    t.push_back({"avg_pool2d",
                 c.label,
                 {{c.x}},
                 [c](V v) {
                   return avg_pool2d(v[0], c.kernel, c.stride, c.padding, c.ceil_mode,
                                     c.count_include_pad);
                 },
                 [pool](T x) { return pool(x[0]); }});
    t.push_back({"avg_pool2d_backward",
                 c.label,
                 {{pool(torch::zeros(c.x)).sizes().vec()}},
                 [c](V v) {
                   return avg_pool2d_backward(v[0], c.x, c.kernel, c.stride, c.padding, c.ceil_mode,
                                              c.count_include_pad);
                 },
                 [c, pool](T x) { return reference_adjoint(c.x, x[0], pool); }});
  }
  for (const auto& [label, x, h, w] :
       {std::tuple{"windows that overlap", std::vector<int64_t>{2, 3, 7, 5}, 3, 2},
        std::tuple{"the whole image", std::vector<int64_t>{2, 3, 4, 5}, 1, 1},
        std::tuple{"more windows than rows", std::vector<int64_t>{1, 2, 2, 3}, 3, 3},
        std::tuple{"empty batch", std::vector<int64_t>{0, 3, 4, 5}, 2, 2}}) {
    const Pair out(h, w);
    const std::vector<int64_t> sizes = x;
    const auto pool = [out](const at::Tensor& in) {
      return torch::adaptive_avg_pool2d(in, {out.h, out.w});
    };
    t.push_back({"adaptive_avg_pool2d",
                 label,
                 {{sizes}},
                 [out](V v) { return adaptive_avg_pool2d(v[0], out); },
                 [pool](T in) { return pool(in[0]); }});
    t.push_back({"adaptive_avg_pool2d_backward",
                 label,
                 {{{sizes[0], sizes[1], out.h, out.w}}},
                 [sizes](V v) { return adaptive_avg_pool2d_backward(v[0], sizes); },
                 [sizes, pool](T in) { return reference_adjoint(sizes, in[0], pool); }});
  }
}

void add_batch_norms(std::vector<OpCase>& t) {
  const auto add = [&t](OpCase row) -> OpCase& { return t.emplace_back(std::move(row)); };
  const auto given = [](double base) { return torch::linspace(base, base + 1, 3, at::kDouble); };
  const auto reference = [](T x) {
    return torch::batch_norm(x[0], x.size() > 1 ? x[1] : at::Tensor(),
                             x.size() > 2 ? x[2] : at::Tensor(), {}, {}, true, 0.1, 1e-5, false);
  };
  const auto ours = [](V v) {
    return batch_norm(v[0], v.size() > 1 ? v[1] : Variable(), v.size() > 2 ? v[2] : Variable()).y;
  };
  add({"batch_norm", "of an image", {{{2, 3, 4, 2}}, {{3}}, {{3}}}, ours, reference});
  add({"batch_norm", "of features", {{{5, 3}}, {{3}}, {{3}}}, ours, reference});
  add({"batch_norm", "scale alone", {{{4, 3, 2}}, {{3}}}, ours, reference});
  add({"batch_norm", "plain", {{{2, 3, 2, 2}}}, ours, reference});
  add({"batch_norm", "many", {{{19, 37, 9, 5}}, {{37}}, {{37}}}, ours, reference}).differences =
      false;
  add({"batch_norm",
       "constant weights",
       {{{5, 3}}, {{3}, -2, 2, false}, {{3}, -2, 2, false}},
       ours,
       reference});
  add({"batch_norm", "empty batch", {{{0, 3, 4, 2}}, {{3}}, {{3}}}, ours, reference});
  for (const auto& sizes : {std::vector<int64_t>{2, 3, 4, 2}, {1, 3}, {0, 3, 2, 2}}) {
    add({"batch_norm",
         sizes[0] == 0   ? "given statistics, empty batch"
         : sizes[0] == 1 ? "given statistics, one"
                         : "given statistics",
         {{sizes}, {{3}}, {{3}}},
         [given](V v) {
           const auto at = [&](const at::Tensor& s) {
             return v[0].defined() ? s.to(v[0].data().options()) : s;
           };
           return batch_norm(v[0], v[1], v[2], at(given(-0.5)), at(given(0.25)));
         },
         [given](T x) {
           return torch::batch_norm(x[0], x[1], x[2], given(-0.5), given(0.25), false, 0.1, 1e-5,
                                    false);
         }});
  }
}

void add_cells(std::vector<OpCase>& t) {
  const auto add = [&t](OpCase row) -> OpCase& { return t.emplace_back(std::move(row)); };
  const auto lstm = [](const std::vector<at::Tensor>& x) {
    const auto g = x[0].chunk(4, 1);
    const at::Tensor c = g[1].sigmoid() * x[1] + g[0].sigmoid() * g[2].tanh();
    return std::pair(g[3].sigmoid() * c.tanh(), c);
  };
  const auto gru = [](T x) {
    const auto a = x[0].chunk(3, 1), b = x[1].chunk(3, 1);
    const at::Tensor r = (a[0] + b[0]).sigmoid(), z = (a[1] + b[1]).sigmoid(),
                     n = (a[2] + r * b[2]).tanh();
    return (1 - z) * n + z * x[2];
  };
  for (const int64_t b : {3, 0, 70}) {
    const int64_t h = b == 70 ? 37 : 5;
    const std::string label = b == 0 ? "empty batch" : b == 3 ? "" : "many";
    add({"lstm_cell",
         label + " both results",
         {{{b, 4 * h}}, {{b, h}}},
         [](V v) {
           const auto [y, c] = lstm_cell(v[0], v[1]);
           return cat({y, c}, 1);
         },
         [lstm](T x) {
           const auto [y, c] = lstm(x);
           return torch::cat({y, c}, 1);
         }})
        .differences = b < 70;
    add({"gru_cell",
         label,
         {{{b, 3 * h}}, {{b, 3 * h}}, {{b, h}}},
         [](V v) { return gru_cell(v[0], v[1], v[2]); },
         gru})
        .differences = b < 70;
  }
  // At least 16 sequences with an even hidden size and more than one step run as one op.
  struct LayerCase {
    std::string label;
    int64_t steps, batch, h;
    bool reverse;
  };
  for (const LayerCase& l : std::vector<LayerCase>{{"one op", 3, 17, 4, false},
                                                   {"one op, reverse", 3, 17, 4, true},
                                                   {"by steps", 3, 2, 5, false},
                                                   {"by steps, reverse", 2, 3, 5, true},
                                                   {"one step", 1, 16, 4, false},
                                                   {"several panels", 2, 65, 20, false},
                                                   {"divided units", 3, 17, 384, false},
                                                   {"divided units, reverse", 3, 17, 384, true}}) {
    const bool reverse = l.reverse;
    const int64_t gates = 4 * l.h;
    // With larger weights, sums over many units would be far from 0, where rounding errors grow.
    const double weight = l.h < 100 ? 0.3 : 0.02;
    add({"lstm_layer",
         l.label,
         {{{l.steps, l.batch, 3}},
          {{gates, 3}, -0.3, 0.3},
          {{gates}},
          {{gates, l.h}, -weight, weight},
          {{l.batch, l.h}},
          {{l.batch, l.h}}},
         [reverse](V v) {
           const auto [y, c] = lstm_layer(v[0], v[1], v[2], v[3], v[4], v[5], reverse);
           return cat({reshape(y, {-1}), reshape(c, {-1})}, 0);
         },
         [lstm, reverse](T x) {
           at::Tensor h = x[4], c = x[5];
           std::vector<at::Tensor> y(static_cast<size_t>(x[0].size(0)));
           for (size_t i = 0; i < y.size(); ++i) {
             const size_t t = reverse ? y.size() - 1 - i : i;
             const at::Tensor x_t = x[0][static_cast<int64_t>(t)];
             std::tie(h, c) = lstm({x_t.matmul(x[1].t()) + x[2] + h.matmul(x[3].t()), c});
             y[t] = h;
           }
           return torch::cat({torch::stack(y).flatten(), c.flatten()});
         }})
        .differences = l.batch < 65 && l.h < 100;
  }
  add({"lstm_cell",
       "h alone",
       {{{2, 20}}, {{2, 5}}},
       [](V v) { return lstm_cell(v[0], v[1]).first; },
       [lstm](T x) { return lstm(x).first; }});
  add({"lstm_cell",
       "c alone, saturated gates",
       {{{2, 20}, -120, 120}, {{2, 5}}},
       [](V v) { return lstm_cell(v[0], v[1]).second; },
       [lstm](T x) { return lstm(x).second; }});
  add({"gru_cell",
       "saturated gates",
       {{{2, 15}, -120, 120}, {{2, 15}}, {{2, 5}}},
       [](V v) { return gru_cell(v[0], v[1], v[2]); },
       gru});
}

}  // namespace

std::vector<OpCase> image_and_cell_rows() {
  std::vector<OpCase> t;
  add_convolutions(t);
  add_pools(t);
  add_batch_norms(t);
  add_cells(t);
  return t;
}

}  // namespace lathe::test
