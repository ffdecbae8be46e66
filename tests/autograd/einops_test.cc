// Tests of einops: recorded results of Python's einops and torch.einsum, gradients, the order of
// matrix products, and the errors of wrong patterns.
#include "autograd/einops.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "autograd/create.h"
#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/support/catch.h"
#include "tests/support/process.h"

namespace {

using namespace lathe;

std::vector<std::string> parts(const std::string& text, char at) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == at)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}
std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> out;
  for (const auto& n : parts(text, ',')) {
    if (!n.empty()) out.push_back(std::stoll(n));
  }
  return out;
}

/// A line of tests/oracles/einops/cases.txt, which record.py describes.
struct Recorded {
  std::string function, pattern, reduction;
  std::vector<std::vector<int64_t>> shapes;
  AxisSizes sizes;
  std::vector<int64_t> result;
  double sums[2] = {};

  explicit Recorded(const std::string& line) {
    const auto f = parts(line, '|');
    REQUIRE(f.size() == 8);
    function = f[0];
    pattern = f[1];
    reduction = f[4];
    result = numbers(f[5]);
    for (const auto& s : parts(f[2], ';')) shapes.push_back(numbers(s));
    for (const auto& s : parts(f[3], ',')) {
      const auto pair = parts(s, '=');
      if (pair.size() == 2) sizes.emplace_back(pair[0], std::stoll(pair[1]));
    }
    sums[0] = std::stod(f[6]);
    sums[1] = std::stod(f[7]);
  }
  std::vector<Variable> operands() const {
    std::vector<Variable> out;
    for (size_t k = 0; k < shapes.size(); ++k) {
      const int64_t n = c10::multiply_integers(shapes[k]);
      const at::Tensor i = torch::arange(n) * 37 + 11 * static_cast<int64_t>(k);
      out.emplace_back((i.remainder(101).to(at::kDouble) / 50 - 1).reshape(shapes[k]));
    }
    return out;
  }
  Variable operator()(const std::vector<Variable>& x) const {
    if (function == "rearrange") return rearrange(x[0], pattern, sizes);
    if (function == "reduce") return reduce(x[0], pattern, reduction, sizes);
    if (function == "repeat") return repeat(x[0], pattern, sizes);
    return function == "einsum" ? einsum(pattern, x) : einsum(x, pattern);
  }
  /// Returns how a result differs from the recorded result, or "". The tolerance allows for sums of
  /// up to 3000 products in float64, recorded with 12 digits.
  std::string differs(const at::Tensor& y) const {
    if (y.sizes() != at::IntArrayRef(result)) return "its shape";
    const at::Tensor flat = y.reshape({-1}), i = torch::arange(flat.numel(), at::kDouble);
    const double got[2] = {(flat * (i + 1).cos()).sum().item<double>(),
                           (flat * ((i * 7).remainder(13) - 6)).sum().item<double>()};
    for (const int k : {0, 1}) {
      if (!(std::abs(got[k] - sums[k]) <= 1e-9 * (1 + std::abs(sums[k])))) return "its values";
    }
    return "";
  }
};

std::vector<Recorded> recorded() {
  std::ifstream file(test::source_folder() / "tests/oracles/einops/cases.txt");
  std::vector<Recorded> out;
  for (std::string line; std::getline(file, line);) out.emplace_back(line);
  return out;
}

TEST_CASE("recorded patterns give what Python's einops and torch.einsum give", "[einops]") {
  const auto all = recorded();
  REQUIRE(all.size() >= 400);
  int64_t noticed = 0;
  for (const Recorded& r : all) {
    INFO(r.function << " \"" << r.pattern << "\"");
    const at::Tensor y = r(r.operands()).data();
    CHECK(r.differs(y) == "");
    // The comparison must notice two exchanged elements.
    if (y.numel() < 2) continue;
    at::Tensor wrong = y.contiguous().clone();
    wrong.view(-1)[0] = y.reshape({-1})[1];
    wrong.view(-1)[1] = y.reshape({-1})[0];
    noticed += wrong.equal(y) || !r.differs(wrong).empty();
    if (!wrong.equal(y) && r.differs(wrong).empty())
      FAIL_CHECK("two exchanged elements are not noticed");
  }
  CHECK(noticed > 300);
}

TEST_CASE("first and second derivatives of patterns agree with finite differences", "[einops]") {
  const auto all = recorded();
  int checked = 0;
  for (size_t i = 0; i < all.size(); i += 8) {
    const Recorded& r = all[i];
    const auto x = r.operands();
    int64_t elements = 0;
    for (const Variable& v : x) elements += v.numel();
    // The elements of small operands all differ, so maxima and minima are differentiable.
    if (elements > 60) continue;

    INFO(r.function << " \"" << r.pattern << "\"");
    ++checked;
    gradcheck([&](const std::vector<Variable>& v) { return r(v); }, x);

    const bool linear =
        r.function != "einsum" && r.function != "einsum_named" && r.reduction != "prod";
    // The gradient of a linear function is constant, and so is the gradient of an einsum of one
    // operand.
    if (linear || (x.size() == 1 && r.reduction != "prod")) continue;
    gradcheck(
        [&](const std::vector<Variable>& v) {
          const Variable y = r(v);
          Variable s;
          for (const Variable& g : grad(sum(y * y), v, {}, /*create_graph=*/true))
            s = s.defined() ? s + sum(g * g) : sum(g * g);
          return s;
        },
        x);
  }

  CHECK(checked >= 30);
}

/// Tries all orders in which operands can be multiplied in pairs. Returns the number of
/// multiplications in the cheapest order.
double least(std::vector<std::string> in, const std::string& out,
             const std::map<char, double>& sizes) {
  if (in.size() == 1) return 0;
  double best = std::numeric_limits<double>::infinity();
  for (size_t a = 0; a < in.size(); ++a) {
    for (size_t b = a + 1; b < in.size(); ++b) {
      std::string rest = out, all, kept;
      std::vector<std::string> left;
      for (size_t i = 0; i < in.size(); ++i) {
        if (i == a || i == b) continue;
        left.push_back(in[i]);
        rest += in[i];
      }
      double cost = 1;
      for (const char c : in[a] + in[b]) {
        if (all.find(c) != std::string::npos) continue;
        all += c;
        cost *= sizes.at(c);
        if (rest.find(c) != std::string::npos) kept += c;
      }
      left.push_back(kept);
      best = std::min(best, cost + least(left, out, sizes));
    }
  }
  return best;
}

TEST_CASE("einsum takes the cheapest order of products", "[einops]") {
  // A chain of matrices: multiplying from the right costs 30 times less than from the left.
  const auto plan = einsum_plan("ij,jk,kl->il", {{50, 60}, {60, 70}, {70, 1}});
  CHECK(plan.multiplications == 50 * 60 + 60 * 70);
  CHECK(plan.steps == std::vector<std::pair<size_t, size_t>>{{1, 2}, {0, 1}});

  const std::map<char, double> sizes{{'a', 2}, {'b', 7}, {'c', 3}, {'d', 5}, {'e', 11}, {'f', 4}};
  uint64_t state = 5;
  const auto next = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };

  for (int trial = 0; trial < 60; ++trial) {
    std::vector<std::string> in(2 + next(4));
    for (auto& labels : in) {
      for (const auto& [c, size] : sizes) {
        if (next(2) == 0) labels += c;
      }
      if (labels.empty()) labels = "a";
    }
    std::string equation, out;
    for (const auto& [c, size] : sizes) {
      int operands = 0;
      for (const auto& labels : in) operands += labels.find(c) != std::string::npos;
      if (operands > 0 && next(3) == 0) out += c;
      // einsum() sums over an index that only one operand has before the first product. least()
      // does not take this sum into account, so leave out the index.
      if (operands != 1 || out.find(c) != std::string::npos) continue;
      for (auto& labels : in) std::erase(labels, c);
    }

    std::vector<std::vector<int64_t>> shapes;
    for (const auto& labels : in) {
      equation += (equation.empty() ? "" : ",") + labels;
      shapes.emplace_back();
      for (const char c : labels) shapes.back().push_back(static_cast<int64_t>(sizes.at(c)));
    }
    if (std::any_of(in.begin(), in.end(), [](const std::string& labels) { return labels.empty(); }))
      continue;
    INFO(equation << " -> " << out);
    CHECK(einsum_plan(equation + "->" + out, shapes).multiplications == least(in, out, sizes));
  }

  // With more than 10 operands, the plan takes the cheapest remaining pair at each step.
  std::vector<std::vector<int64_t>> chain(12, {2, 2});
  const auto many = einsum_plan("ab,bc,cd,de,ef,fg,gh,hi,ij,jk,kl,lm->am", chain);
  CHECK(many.steps.size() == 11);
  CHECK(many.multiplications == 11 * 8);
  std::vector<Variable> xs;
  at::Tensor wanted = torch::eye(2, at::kDouble);
  for (int k = 0; k < 12; ++k) {
    xs.push_back(randn({2, 2}, static_cast<uint64_t>(k), at::kDouble));
    wanted = wanted.matmul(xs.back().data());
  }
  CHECK(einsum("ab,bc,cd,de,ef,fg,gh,hi,ij,jk,kl,lm->am", xs).data().allclose(wanted, 1e-12));
}

TEST_CASE("the result of a pattern that moves no elements shares x's storage", "[einops]") {
  const Variable x = randn({2, 6, 4}, 1);
  const auto shares = [&](const Variable& y) {
    return y.data().storage().data() == x.data().storage().data();
  };
  CHECK(shares(rearrange(x, "b (h w) c -> b h w c", {{"h", 2}})));
  CHECK(shares(rearrange(x, "b t c -> c t b")));
  CHECK(shares(repeat(x, "b t c -> b t r c", {{"r", 5}})));
  CHECK_FALSE(shares(rearrange(x, "b t c -> (c t) b")));
  const std::vector<Variable> two{x, x * 2.0};
  CHECK(
      rearrange(two, "n b t c -> b t (n c)").data().equal(torch::cat({x.data(), x.data() * 2}, 2)));
}

TEST_CASE("the error of a wrong pattern names the pattern, the axis and the sizes", "[einops]") {
  const Variable x(torch::zeros({2, 6, 3}));
  const auto refusal = [&](const std::string& pattern, const AxisSizes& sizes = {}) {
    return error_of([&] { rearrange(x, pattern, sizes); });
  };
  const auto begins = [](const std::string& pattern) { return "rearrange \"" + pattern + "\""; };
  const auto of_x = [&](const std::string& pattern) {
    return begins(pattern) + " of float32[2,6,3]: ";
  };

  CHECK_THAT(refusal("b t c"), ContainsSubstring(begins("b t c")) && ContainsSubstring("\"->\""));
  CHECK_THAT(refusal("b (t c -> b t c"),
             ContainsSubstring(begins("b (t c -> b t c")) && ContainsSubstring("\"(\" without"));
  CHECK_THAT(refusal("b t) c -> b t c"),
             ContainsSubstring(begins("b t) c -> b t c")) && ContainsSubstring("\")\" without"));
  CHECK_THAT(refusal("b ((t c)) -> b t c"), ContainsSubstring(begins("b ((t c)) -> b t c")) &&
                                                ContainsSubstring("within parentheses"));
  CHECK_THAT(refusal("b t b -> b t"), ContainsSubstring(begins("b t b -> b t")) &&
                                          ContainsSubstring("axis b") &&
                                          ContainsSubstring("twice"));
  CHECK_THAT(refusal("b t c -> b t"), ContainsSubstring(begins("b t c -> b t")) &&
                                          ContainsSubstring("axis c") && ContainsSubstring("left"));
  CHECK_THAT(refusal("b t -> b t c"), ContainsSubstring(begins("b t -> b t c")) &&
                                          ContainsSubstring("axis c") &&
                                          ContainsSubstring("right"));
  CHECK_THAT(refusal("b t ? -> b t"),
             ContainsSubstring(begins("b t ? -> b t")) && ContainsSubstring("\"?\""));
  CHECK_THAT(refusal("b ... ... -> b"), ContainsSubstring(begins("b ... ... -> b")) &&
                                            ContainsSubstring("\"...\"") &&
                                            ContainsSubstring("twice"));
  CHECK_THAT(refusal("b (... c) -> b ... c"), ContainsSubstring(begins("b (... c) -> b ... c")) &&
                                                  ContainsSubstring("\"...\"") &&
                                                  ContainsSubstring("in parentheses"));
  CHECK_THAT(refusal("b t 3 -> b t"), ContainsSubstring(begins("b t 3 -> b t")) &&
                                          ContainsSubstring("axis 3") &&
                                          ContainsSubstring("no name"));

  // Test patterns that do not fit the shape.
  CHECK_THAT(refusal("b t -> t b"),
             ContainsSubstring(of_x("b t -> t b")) && ContainsSubstring("2 dims"));
  CHECK_THAT(refusal("a b c d ... -> a b c d ..."),
             ContainsSubstring(of_x("a b c d ... -> a b c d ...")) && ContainsSubstring("4 dims"));
  CHECK_THAT(refusal("b (h w) c -> b h w c"), ContainsSubstring(of_x("b (h w) c -> b h w c")) &&
                                                  ContainsSubstring("h and w") &&
                                                  ContainsSubstring("dim of 6"));
  CHECK_THAT(refusal("b (h w) c -> b h w c", {{"h", 4}}),
             ContainsSubstring(of_x("b (h w) c -> b h w c") + "axis w") &&
                 ContainsSubstring("divisible by 4"));
  CHECK_THAT(refusal("b (h w) c -> b h w c", {{"h", 4}, {"w", 2}}),
             ContainsSubstring(of_x("b (h w) c -> b h w c")) && ContainsSubstring("(h w) is 8") &&
                 ContainsSubstring("6 in x"));
  CHECK_THAT(
      refusal("b t c -> b t c", {{"t", 5}}),
      ContainsSubstring(of_x("b t c -> b t c") + "axis t is 5") && ContainsSubstring("6 in x"));
  CHECK_THAT(refusal("b t c -> b t c", {{"d", 5}}),
             ContainsSubstring(of_x("b t c -> b t c") + "axis d") && ContainsSubstring("not in"));
  CHECK_THAT(refusal("b 1 c -> b c"),
             ContainsSubstring(of_x("b 1 c -> b c") + "dim 1 is 1") && ContainsSubstring("6 in x"));

  CHECK_THAT(error_of([&] { repeat(x, "b t c -> b t c r"); }),
             ContainsSubstring("repeat \"b t c -> b t c r\" of float32[2,6,3]: axis r") &&
                 ContainsSubstring("new"));
  CHECK_THAT(error_of([&] { reduce(x, "b t c -> b", "median"); }),
             ContainsSubstring("reduce \"b t c -> b\": \"median\"") &&
                 ContainsSubstring("sum, mean, max, min, prod"));

  const auto summed = [&](const std::string& equation) {
    return error_of([&] { einsum(equation, {x, x}); });
  };
  CHECK_THAT(summed("ijk,jkl->il"),
             ContainsSubstring("einsum \"ijk,jkl->il\" of [2,6,3], [2,6,3]: index j") &&
                 ContainsSubstring("size 6") && ContainsSubstring("size 2 in operand 1"));
  CHECK_THAT(summed("ijk->i"), ContainsSubstring("einsum \"ijk->i\" of [2,6,3], [2,6,3]: ") &&
                                   ContainsSubstring("1 operand") &&
                                   ContainsSubstring("2 tensors"));
  CHECK_THAT(summed("ij,ijk->i"),
             ContainsSubstring("einsum \"ij,ijk->i\" of [2,6,3], [2,6,3]: operand 0") &&
                 ContainsSubstring("3 dims") && ContainsSubstring("2 indices"));
  CHECK_THAT(summed("ijk,ijk->iz"), ContainsSubstring("einsum \"ijk,ijk->iz\": index z") &&
                                        ContainsSubstring("no operand"));
  CHECK_THAT(summed("ijk,ijk->ii"),
             ContainsSubstring("einsum \"ijk,ijk->ii\": index i") && ContainsSubstring("twice"));
  CHECK_THAT(summed("ij3,ijk->i"), ContainsSubstring("einsum \"ij3,ijk->i\": \"3\""));
}

}  // namespace
