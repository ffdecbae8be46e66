// Rows of the op table for elementwise functions, activations, in-place ops and reductions.
#include <limits>

#include "autograd/fused.h"
#include "autograd/ops.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"

namespace lathe::test {
namespace {

using V = const std::vector<Variable>&;
using T = const std::vector<at::Tensor>&;
using Ours = Variable (*)(const Variable&);
using Oracle = at::Tensor (*)(const at::Tensor&);

/// A shape with which ops on one tensor are tested.
struct Shape {
  const char* label;
  std::vector<int64_t> sizes;
};
const std::vector<Shape> shapes{{"", {2, 3}}, {"0-dim", {}}, {"size 1", {1}}, {"empty", {0, 3}}};

void add_functions(std::vector<OpCase>& t) {
  struct Unary {
    const char* op;
    Ours ours;
    Oracle oracle;
    double low = -2, high = 2;
  };
  const std::vector<Unary> unary{
      {"abs", abs, [](const at::Tensor& x) { return x.abs(); }},
      {"sign", sign, [](const at::Tensor& x) { return x.sign(); }},
      {"sin", sin, [](const at::Tensor& x) { return x.sin(); }},
      {"cos", cos, [](const at::Tensor& x) { return x.cos(); }},
      {"log1p", log1p, [](const at::Tensor& x) { return x.log1p(); }, -0.5, 2},
      {"expm1", expm1, [](const at::Tensor& x) { return x.expm1(); }},
      {"rsqrt", rsqrt, [](const at::Tensor& x) { return x.rsqrt(); }, 0.5, 2},
      {"reciprocal", reciprocal, [](const at::Tensor& x) { return x.reciprocal(); }, 0.5, 2},
      {"softplus", [](const Variable& x) { return softplus(x); },
       [](const at::Tensor& x) { return torch::softplus(x); }},
      {"softplus", [](const Variable& x) { return softplus(x, 3, 2); },
       [](const at::Tensor& x) { return torch::softplus(x, 3, 2); }},
      {"logsigmoid", logsigmoid, [](const at::Tensor& x) { return torch::log_sigmoid(x); }},
      {"elu", [](const Variable& x) { return elu(x, 1.5); },
       [](const at::Tensor& x) { return torch::elu(x, 1.5); }},
      {"leaky_relu", [](const Variable& x) { return leaky_relu(x, 0.2); },
       [](const at::Tensor& x) { return torch::leaky_relu(x, 0.2); }},
      {"hardswish", hardswish, [](const at::Tensor& x) { return torch::hardswish(x); }, -5, 5},
      {"mish", mish, [](const at::Tensor& x) { return torch::mish(x); }, -5, 5},
      {"clamp", [](const Variable& x) { return clamp(x, -0.5, 1.0); },
       [](const at::Tensor& x) { return x.clamp(-0.5, 1.0); }},
      {"clamp", [](const Variable& x) { return clamp(x, std::nullopt, 0.25); },
       [](const at::Tensor& x) { return x.clamp_max(0.25); }},
      {"relu_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return relu_(y);
       },
       [](const at::Tensor& x) { return torch::relu(x * 2.0); }},
      {"leaky_relu_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return leaky_relu_(y, 0.2);
       },
       [](const at::Tensor& x) { return torch::leaky_relu(x * 2.0, 0.2); }},
      {"tanh_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return tanh_(y);
       },
       [](const at::Tensor& x) { return torch::tanh(x * 2.0); }},
      {"sigmoid_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return sigmoid_(y);
       },
       [](const at::Tensor& x) { return torch::sigmoid(x * 2.0); }},
      {"mul_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return mul_(y, -1.5);
       },
       [](const at::Tensor& x) { return x * -3.0; }},
      {"masked_fill_",
       [](const Variable& x) {
         Variable y = x * 2.0;
         return masked_fill_(y, x.data().gt(0), 7);
       },
       [](const at::Tensor& x) { return (x * 2.0).masked_fill(x.gt(0), 7); }}};
  for (const Unary& u : unary) {
    for (const Shape& s : shapes) {
      t.push_back({u.op,
                   s.label,
                   {{s.sizes, u.low, u.high}},
                   [u](V v) { return u.ours(v[0]); },
                   [u](T x) { return u.oracle(x[0]); }});
    }
  }
  t.push_back({"fused",
               "",
               {{{3, 5}}, {{5}}, {{3, 1}}},
               [](V v) {
                 const auto f = [](const Variable& x, const Variable& w, const Variable& b) {
                   const Variable h = x * w + b;
                   return h * sigmoid(h * 1.702) + where(h > 0, tanh(x), x * 0.5);
                 };
                 return fused(f, v[0], v[1], v[2]);
               },
               [](T x) {
                 const at::Tensor h = x[0] * x[1] + x[2];
                 return h * (h * 1.702).sigmoid() + torch::where(h > 0, x[0].tanh(), x[0] * 0.5);
               }});
}

void add_pairs(std::vector<OpCase>& t) {
  const auto condition = [](at::Device device) {
    return torch::tensor({{true}, {false}}).to(device);
  };
  for (const auto& [label, a, b] :
       {std::tuple{"broadcast", std::vector<int64_t>{2, 3}, std::vector<int64_t>{2, 1}},
        std::tuple{"0-dim", std::vector<int64_t>{2, 3}, std::vector<int64_t>{}},
        std::tuple{"size 1", std::vector<int64_t>{1}, std::vector<int64_t>{2, 1}},
        std::tuple{"empty", std::vector<int64_t>{2, 0}, std::vector<int64_t>{2, 1}}}) {
    const std::vector<Input> both{{a}, {b}};
    t.push_back({"maximum", label, both, [](V v) { return maximum(v[0], v[1]); },
                 [](T x) { return torch::maximum(x[0], x[1]); }});
    t.push_back({"minimum", label, both, [](V v) { return minimum(v[0], v[1]); },
                 [](T x) { return torch::minimum(x[0], x[1]); }});
    t.push_back({"where", label, both,
                 [condition](V v) { return where(condition(device_of(v)), v[0], v[1]); },
                 [condition](T x) { return torch::where(condition(at::kCPU), x[0], x[1]); }});
    t.push_back({"xlogy",
                 label,
                 {{a}, {b, 0.5, 2}},
                 [](V v) { return xlogy(v[0], v[1]); },
                 [](T x) { return torch::xlogy(x[0], x[1]); }});
    t.push_back({"clamp", std::string(label) + ", bound", both,
                 [](V v) { return clamp(v[0], v[1]); },
                 [](T x) { return torch::clamp(x[0], std::optional(x[1])); }});
  }
  const Input a{{2, 3}};
  for (const char* op : {"maximum", "minimum"}) {
    const bool largest = std::string(op) == "maximum";
    t.push_back(
        {op,
         "ties",
         {{{2, 3}, 1, 1}, {{3}, 1, 1}},
         [=](V v) { return largest ? maximum(v[0], v[1]) : minimum(v[0], v[1]); },
         [=](T x) { return largest ? torch::maximum(x[0], x[1]) : torch::minimum(x[0], x[1]); }});
    t.back().differences = false;
  }
  t.push_back(
      {"where",
       "numbers",
       {a},
       [](V v) { return where(v[0] > 0, v[0], 3) + where(v[0] > 1, -1, v[0]); },
       [](T x) { return torch::where(x[0].gt(0), x[0], 3) + torch::where(x[0].gt(1), -1, x[0]); }});
  t.push_back({"clamp",
               "bounds that cross",
               {a, {{3}, -1, 1}, {{2, 1}, -1, 1}},
               [](V v) { return clamp(v[0], v[1], v[2]); },
               [](T x) { return torch::clamp(x[0], std::optional(x[1]), std::optional(x[2])); }});
  t.push_back({"clamp",
               "upper bound",
               {a, {{3}, -1, 1}},
               [](V v) { return clamp(v[0], Variable(), v[1]); },
               [](T x) { return torch::clamp(x[0], std::nullopt, std::optional(x[1])); }});
  t.push_back({"add_",
               "broadcast",
               {a, {{3}}},
               [](V v) {
                 Variable y = v[0] * 2.0;
                 return add_(y, v[1]);
               },
               [](T x) { return x[0] * 2.0 + x[1]; }});
}

void add_extremes(std::vector<OpCase>& t) {
  for (const auto& [label, sizes, low] : {std::tuple{"", std::vector<int64_t>{2, 3, 4}, -2.0},
                                          std::tuple{"0-dim", std::vector<int64_t>{}, -2.0},
                                          std::tuple{"size 1", std::vector<int64_t>{1}, -2.0},
                                          std::tuple{"ties", std::vector<int64_t>{2, 3}, 2.0}}) {
    const auto all = std::string(label) + ", of all";
    const std::vector<Input> in{{sizes, low, 2}};
    t.push_back({"max", all, in, [](V v) { return max(v[0]); }, [](T x) { return x[0].max(); }});
    t.back().differences = low < 2;
    t.push_back({"min", all, in, [](V v) { return min(v[0]); }, [](T x) { return x[0].min(); }});
    t.back().differences = low < 2;
  }
  for (const Shape& s : shapes) {
    const std::vector<Input> in{{s.sizes}};
    for (const bool keep : {false, true}) {
      const std::string label = std::string(s.label) + (keep ? ", kept" : "");
      t.push_back({"max", label, in, [keep](V v) { return max(v[0], -1, keep).first; },
                   [keep](T x) { return std::get<0>(x[0].max(-1, keep)); }});
      t.push_back({"min", label, in, [keep](V v) { return min(v[0], -1, keep).first; },
                   [keep](T x) { return std::get<0>(x[0].min(-1, keep)); }});
    }
    for (const bool down : {false, true}) {
      t.push_back({"sort", std::string(s.label) + (down ? ", descending" : ""), in,
                   [down](V v) { return sort(v[0], 0, down).first; },
                   [down](T x) { return std::get<0>(x[0].sort(/*stable=*/true, 0, down)); }});
    }
  }
}

void add_scans(std::vector<OpCase>& t) {
  for (const Shape& s : shapes) {
    const std::vector<Input> in{{s.sizes}};
    t.push_back({"cumsum", s.label, in, [](V v) { return cumsum(v[0], -1); },
                 [](T x) { return x[0].cumsum(-1); }});
    t.push_back({"cumprod", s.label, in, [](V v) { return cumprod(v[0], 0); },
                 [](T x) { return x[0].cumprod(0); }});
    t.push_back(
        {"prod", s.label, in, [](V v) { return prod(v[0]); }, [](T x) { return x[0].prod(); }});
    t.push_back({"prod", std::string(s.label) + ", a dim", in, [](V v) { return prod(v[0], 0); },
                 [](T x) { return x[0].prod(0); }});
  }
  // The following ops get a matrix in which one or two elements of each row are an exact zero,
  // computed as x - x.
  for (const int64_t zeros : {1, 2}) {
    const auto mask = [zeros](at::Device device) {
      return torch::arange(4, at::TensorOptions(at::kLong).device(device)).lt(1 + zeros) &
             torch::arange(4, at::TensorOptions(at::kLong).device(device)).gt(0);
    };
    const std::string label = zeros == 1 ? "a zero" : "two zeros";
    const auto ours = [mask](const Variable& x) {
      return where(mask(device_of({x})), x - x.data(), x);
    };
    const auto oracle = [mask](const at::Tensor& x) {
      return torch::where(mask(at::kCPU), x - x.detach(), x);
    };
    t.push_back({"cumprod",
                 label,
                 {{{2, 4}}},
                 [ours](V v) { return cumprod(ours(v[0]), 1); },
                 [oracle](T x) { return oracle(x[0]).cumprod(1); }});
    t.back().differences = false;  // the zeros do not change with x, but have gradients
    t.push_back({"prod",
                 label,
                 {{{2, 4}}},
                 [ours](V v) { return prod(ours(v[0]), 1, true); },
                 [oracle](T x) { return oracle(x[0]).prod(1, true); }});
    t.back().differences = false;
  }
}

void add_statistics(std::vector<OpCase>& t) {
  for (const Shape& s : shapes) {
    const std::vector<Input> in{{s.sizes}};
    const bool one = s.sizes.empty() || s.sizes[0] == 1;
    if (!s.sizes.empty() && s.sizes[0] != 0)
      t.push_back({"logsumexp", s.label, in, [](V v) { return logsumexp(v[0], -1); },
                   [](T x) { return x[0].logsumexp(-1); }});
    t.push_back({"norm", s.label, in, [](V v) { return norm(v[0]); },
                 [](T x) { return torch::linalg_vector_norm(x[0], 2); }});
    t.push_back(
        {"var", s.label, in, [one](V v) { return var(v[0], -1, one ? 0 : 1); },
         [one](T x) { return x[0].var(at::IntArrayRef{-1}, at::Scalar(one ? 0 : 1), false); }});
    if (one) continue;  // a single element has variance 0, at which a root has no derivative
    t.push_back({"std", s.label, in, [](V v) { return std(v[0], 1, 0.5, true); },
                 [](T x) { return x[0].std(at::IntArrayRef{1}, at::Scalar(0.5), true); }});
  }
  const Input image{{2, 3, 4}};
  t.push_back({"logsumexp",
               "two dims",
               {image},
               [](V v) { return logsumexp(v[0], at::IntArrayRef{0, 2}, true); },
               [](T x) { return x[0].logsumexp(at::IntArrayRef{0, 2}, true); }});
  t.push_back(
      {"var", "all", {image}, [](V v) { return var(v[0]); }, [](T x) { return x[0].var(true); }});
  t.push_back(
      {"std", "all", {image}, [](V v) { return std(v[0]); }, [](T x) { return x[0].std(true); }});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double p : {0.0, 0.5, 1.0, 1.5, 3.0, infinity, -infinity}) {
    t.push_back(
        {"norm",
         std::to_string(p),
         {image},
         [p](V v) { return norm(v[0], p, at::IntArrayRef{0, -1}, true); },
         [p](T x) { return torch::linalg_vector_norm(x[0], p, at::IntArrayRef{0, -1}, true); }});
    t.back().differences = p != 0;
    if (p == 0.5) t.back().low_scale = 16;  // a sum of 8 roots is squared
  }
}

}  // namespace

std::vector<OpCase> math_rows() {
  std::vector<OpCase> t;
  add_functions(t);
  add_pairs(t);
  add_extremes(t);
  add_scans(t);
  add_statistics(t);
  return t;
}

}  // namespace lathe::test
