// Maps PyTorch's elementwise functions and reductions to Lathe's functions.
#include "tests/oracles/opinfo/calls.h"

#include "autograd/ops.h"
#include "autograd/ops/math.h"
#include "autograd/ops/reductions.h"
#include "core/dtype.h"
#include "tests/support/catch.h"

namespace lathe::test {
namespace {

/// Converts a list of dims. An empty list means all dims.
at::OptionalIntArrayRef dims(const std::vector<int64_t>& d) {
  return d.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(d);
}

template <class F>
Function one(F f) {
  return [f](Call& c) -> Results { return {f(c.v(0))}; };
}
template <class F>
Function two(F f) {
  return [f](Call& c) -> Results {
    const Variable a = c.v(0), b = c.v(1, "other");
    return {f(a, b)};
  };
}
template <class F>
Function compared(F f) {
  return [f](Call& c) -> Results {
    const Variable a = c.v(0), b = c.v(1, "other");
    return {Variable(f(a, b))};
  };
}
template <class F>
Function in_order(F f) {
  return [f](Call& c) -> Results {
    const Variable x = c.v(0);
    const int64_t dim = c.whole(1, "dim", 0);
    const auto [values, places] = f(x, dim, c);
    return {values, Variable(places)};
  };
}
template <class F>
Function with_dim(F f) {
  return [f](Call& c) -> Results {
    const Variable x = c.v(0);
    return {f(x, c.whole(1, "dim", 0))};
  };
}
Results moments(Call& c, bool root, bool unbiased) {
  const Variable x = c.v(0);
  std::vector<int64_t> d;
  double correction = 1;
  if (unbiased) {
    d = c.is_list(1, "dim") || c.is_number(1, "dim") ? c.wholes(1, "dim") : d;
    correction = c.flag(d.empty() ? 1 : 2, "unbiased", true) ? 1 : 0;
  } else {
    d = c.wholes(1, "dim");
    correction = c.has(99, "unbiased") ? double(c.flag(99, "unbiased", true))
                                       : c.number(99, "correction", 1);
  }
  const bool keep = c.flag(3, "keepdim", false);
  return {root ? std(x, dims(d), correction, keep) : var(x, dims(d), correction, keep)};
}

}  // namespace

Functions elementwise_functions() {
  return {
      {"abs", one(static_cast<Variable (*)(const Variable&)>(abs))},
      {"contiguous", one(contiguous)},
      {"cos", one(cos)},
      {"erf", one(erf)},
      {"exp", one(exp)},
      {"expm1", one(expm1)},
      {"log", one(log)},
      {"log1p", one(log1p)},
      {"neg", one(neg)},
      {"reciprocal", one(reciprocal)},
      {"rsqrt", one(rsqrt)},
      {"sgn", one(sign)},
      {"sigmoid", one(sigmoid)},
      {"sign", one(sign)},
      {"sin", one(sin)},
      {"sqrt", one(sqrt)},
      {"tanh", one(tanh)},
      {"hardswish", one(hardswish)},
      {"logsigmoid", one(logsigmoid)},
      {"mish", one(mish)},
      {"relu", one(relu)},
      {"silu", one(silu)},
      {"mul", two(mul)},
      {"add", two(add)},
      {"sub", two(sub)},
      {"div.no_rounding_mode", two(div)},
      {"maximum", two(maximum)},
      {"minimum", two(minimum)},
      {"max.binary", two(maximum)},
      {"min.binary", two(minimum)},
      {"xlogy", two(xlogy)},
      {"eq", compared(eq)},
      {"ne", compared(ne)},
      {"lt", compared(lt)},
      {"le", compared(le)},
      {"gt", compared(gt)},
      {"ge", compared(ge)},
      {"gelu",
       [](Call& c) -> Results {
         return {
             gelu(c.v(0), c.text(1, "approximate", "none") == "tanh" ? Gelu::tanh : Gelu::exact)};
       }},
      {"elu", [](Call& c) -> Results { return {elu(c.v(0), c.number(1, "alpha", 1))}; }},
      {"leaky_relu",
       [](Call& c) -> Results {
         return {leaky_relu(c.v(0), c.number(1, "negative_slope", 0.01))};
       }},
      {"softplus",
       [](Call& c) -> Results {
         return {softplus(c.v(0), c.number(1, "beta", 1), c.number(2, "threshold", 20))};
       }},
      {"pow",
       [](Call& c) -> Results {
         if (!c.is_number(1, "exponent")) throw Unsupported("a tensor as exponent");
         return {pow(c.v(0), c.number(1, "exponent", 1))};
       }},
      {"clamp",
       [](Call& c) -> Results {
         const Variable x = c.v(0);
         if (c.is_number(1, "min") || c.is_number(2, "max")) {
           const auto bound = [&](size_t i, const char* n) {
             return c.has(i, n) ? std::optional(c.number(i, n, 0)) : std::nullopt;
           };
           return {clamp(x, bound(1, "min"), bound(2, "max"))};
         }
         return {clamp(x, c.v(1, "min"), c.v(2, "max"))};
       }},
      {"clamp_min", [](Call& c) -> Results { return {clamp(c.v(0), c.v(1, "min"))}; }},
      {"clamp_max", [](Call& c) -> Results { return {clamp(c.v(0), Variable(), c.v(1, "max"))}; }},
      {"masked_fill",
       [](Call& c) -> Results {
         if (!c.is_number(2, "value")) throw Unsupported("a tensor as value");
         return {masked_fill(c.v(0), c.t(1, "mask"), c.number(2, "value", 0))};
       }},
      {"where", [](Call& c) -> Results {  // OpInfo passes x before the condition
         const Variable x = c.v(0);
         return {where(c.t(1), x, c.v(2))};
       }}};
}

Functions reduction_functions() {
  const auto reduced = [](auto f) {
    return [f](Call& c) -> Results {
      const Variable x = c.v(0);
      const auto d = c.wholes(1, "dim");
      return {f(x, dims(d), c.flag(2, "keepdim", false))};
    };
  };
  const auto found = [](bool largest) {
    return [largest](Call& c) -> Results {
      const Variable x = c.v(0);
      const std::optional<int64_t> d =
          c.has(1, "dim") ? std::optional(c.whole(1, "dim", 0)) : std::nullopt;
      const bool keep = c.flag(2, "keepdim", false);
      return {Variable(largest ? argmax(x, d, keep) : argmin(x, d, keep))};
    };
  };
  const auto softened = [](bool logarithm) {
    return [logarithm](Call& c) -> Results {
      const Variable x = c.v(0);
      const int64_t d = c.whole(1, "dim", 0);
      return {logarithm ? log_softmax(x, d) : softmax(x, d)};
    };
  };
  return {{"sum", reduced([](const auto&... a) { return sum(a...); })},
          {"mean", reduced([](const auto&... a) { return mean(a...); })},
          {"logsumexp", reduced([](const auto&... a) { return logsumexp(a...); })},
          {"amax",
           [](Call& c) -> Results {
             const Variable x = c.v(0);
             const auto d = c.wholes(1, "dim");
             if (d.size() != 1) throw Unsupported("a number of dims other than one");
             return {amax(x, d[0], c.flag(2, "keepdim", false))};
           }},
          {"argmax", found(true)},
          {"argmin", found(false)},
          {"max.reduction_no_dim", one([](const Variable& x) { return max(x); })},
          {"min.reduction_no_dim", one([](const Variable& x) { return min(x); })},
          {"max.reduction_with_dim", in_order([](const Variable& x, int64_t d, Call& c) {
             return max(x, d, c.flag(2, "keepdim", false));
           })},
          {"min.reduction_with_dim", in_order([](const Variable& x, int64_t d, Call& c) {
             return min(x, d, c.flag(2, "keepdim", false));
           })},
          {"sort",
           [](Call& c) -> Results {
             const Variable x = c.v(0);
             const int64_t d = c.whole(1, "dim", -1);
             const bool down = c.flag(2, "descending", false);
             c.flag(99, "stable", true);
             const auto [values, places] = sort(x, d, down);
             return {values, Variable(places)};
           }},
          {"topk",
           [](Call& c) -> Results {
             const Variable x = c.v(0);
             const int64_t k = c.whole(1, "k", 1), d = c.whole(2, "dim", -1);
             const bool large = c.flag(3, "largest", true);
             if (!c.flag(4, "sorted", true)) throw Unsupported("results without order");
             const auto [values, places] = topk(x, k, d, large);
             return {values, Variable(places)};
           }},
          {"cumsum", with_dim(cumsum)},
          {"cumprod", with_dim(cumprod)},
          {"prod",
           [](Call& c) -> Results {
             const Variable x = c.v(0);
             if (!c.has(1, "dim")) return {prod(x)};
             const int64_t d = c.whole(1, "dim", 0);
             return {prod(x, d, c.flag(2, "keepdim", false))};
           }},
          {"var", [](Call& c) { return moments(c, false, false); }},
          {"std", [](Call& c) { return moments(c, true, false); }},
          {"var.unbiased", [](Call& c) { return moments(c, false, true); }},
          {"std.unbiased", [](Call& c) { return moments(c, true, true); }},
          {"linalg.vector_norm",
           [](Call& c) -> Results {
             const Variable x = c.v(0);
             const double p = c.number(1, "ord", 2);
             const auto d = c.wholes(2, "dim");
             return {norm(x, p, dims(d), c.flag(3, "keepdim", false))};
           }},
          {"softmax", softened(false)},
          {"log_softmax", softened(true)},
          {"sum_to_size", [](Call& c) -> Results {
             const Variable x = c.v(0);
             return {sum_to(x, c.rest(1))};
           }}};
}

}  // namespace lathe::test
