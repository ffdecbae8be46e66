// Compares ops that have Lathe's CPU kernels to float64 LibTorch on the same values, with inputs
// and cotangents in five memory layouts. Kernels read contiguous rows, so an op must copy other
// layouts first.
#include "autograd/engine.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/mode.h"
#include "tests/support/catch.h"
#include "tests/support/op_case.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using namespace lathe::test;

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<int64_t>;

enum class Layout { contiguous, transposed, sliced, rows_expanded, columns_expanded };
constexpr std::array layouts{Layout::contiguous, Layout::transposed, Layout::sliced,
                             Layout::rows_expanded, Layout::columns_expanded};
const char* name(Layout l) {
  constexpr std::array names{"contiguous", "transposed", "sliced", "rows expanded",
                             "columns expanded"};
  return names[static_cast<size_t>(l)];
}

/// Returns t's values in a layout. Memory around a slice is NaN (0 for ids), so that a kernel that
/// reads this memory gives a wrong result. Expanded layouts repeat t's first row or column.
at::Tensor lay(const at::Tensor& t, Layout layout) {
  if (!t.defined() || t.dim() == 0) return t;
  switch (layout) {
    case Layout::contiguous: return t;
    case Layout::transposed:
      if (t.dim() == 1) return torch::stack({t, t}, -1).select(-1, 0);
      return t.transpose(0, -1).contiguous().transpose(0, -1);
    case Layout::sliced: {
      Sizes sizes = t.sizes().vec();
      for (auto& s : sizes) s += 5;
      at::Tensor inside = t.is_floating_point() ? torch::full(sizes, NAN, t.options())
                                                : torch::zeros(sizes, t.options());
      for (int64_t d = 0; d < t.dim(); ++d) inside = inside.narrow(d, 3, t.size(d));
      return inside.copy_(t);
    }
    case Layout::rows_expanded: return t.size(0) == 0 ? t : t.narrow(0, 0, 1).expand(t.sizes());
    default: return t.size(-1) == 0 ? t : t.narrow(-1, 0, 1).expand(t.sizes());
  }
}

/// An op on inputs with `rows` rows, and with `columns` elements in the last dim.
struct LayoutCase {
  std::string op;
  std::function<std::vector<Sizes>(int64_t rows, int64_t columns)> inputs;
  std::function<Variable(const std::vector<Variable>&, const at::Tensor& ids)> ours;
  std::function<at::Tensor(const Tensors&, const at::Tensor& ids)> oracle;
  int64_t id_limit = 0;  // 0: the op takes no ids
  double scale =
      4;  // error in units of the format's spacing times the largest value, as in the op table
  int64_t least_rows = 0, least_columns = 1;
};

constexpr int64_t wide = 37;  // the size of dims other than the rows and columns under test

std::vector<LayoutCase> layout_cases() {
  using V = const std::vector<Variable>&;
  using T = const Tensors&;
  using I = const at::Tensor&;
  const auto classes = [](int64_t c) { return std::min<int64_t>(c, wide); };

  std::vector<LayoutCase> all{
      {"linear", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, c}, {wide, c}}; },
       [](V v, I) { return linear(v[0], v[1]); }, [](T x, I) { return torch::linear(x[0], x[1]); }},
      {"linear with `columns` outputs",
       [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{2, r, wide}, {c, wide}, {c}}; },
       [](V v, I) { return linear(v[0], v[1], v[2]); },
       [](T x, I) { return torch::linear(x[0], x[1], x[2]); }},
      {"linear, residual",
       [](int64_t r, int64_t c) -> std::vector<Sizes> {
         return {{r, c}, {wide, c}, {wide}, {r, wide}};
       },
       [](V v, I) { return linear(v[0], v[1], v[2], v[3]); },
       [](T x, I) { return torch::linear(x[0], x[1], x[2]) + x[3]; }},
      {"linear_gelu",
       [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, c}, {wide, c}, {wide}}; },
       [](V v, I) { return linear_gelu(v[0], v[1], v[2]); },
       [](T x, I) { return torch::gelu(torch::linear(x[0], x[1], x[2]), "tanh"); }},
      // eps is 1/2: the expanded layouts have rows of equal elements, whose normalized values would
      // be mere rounding errors with a small eps.
      {"layer_norm", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, c}, {c}, {c}}; },
       [](V v, I) { return layer_norm(v[0], v[1], v[2], 0.5); },
       [](T x, I) { return torch::layer_norm(x[0], {x[0].size(-1)}, x[1], x[2], 0.5); }},
      {"rms_norm", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{2, r, c}, {c}}; },
       [](V v, I) { return rms_norm(v[0], v[1], 0.5); },
       [](T x, I) { return torch::rms_norm(x[0], {x[0].size(-1)}, x[1], 0.5); }},
      {"swiglu", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, 2 * c}}; },
       [](V v, I) { return swiglu(v[0]); },
       [](T x, I) {
         const int64_t h = x[0].size(-1) / 2;
         return torch::silu(x[0].slice(-1, 0, h)) * x[0].slice(-1, h);
       }},
      {"attention", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{2, r, 3 * 2 * c}}; },
       [](V v, I) { return attention(v[0], 2); },
       [](T x, I) {
         const int64_t b = x[0].size(0), t = x[0].size(1), c = x[0].size(2) / 3;
         const auto part = [&](int64_t i) {
           return x[0].slice(2, i * c, (i + 1) * c).reshape({b, t, 2, c / 2}).transpose(1, 2);
         };
         const at::Tensor s =
             part(0).matmul(part(1).transpose(-2, -1)) / std::sqrt(static_cast<double>(c / 2));
         const at::Tensor p =
             s.masked_fill(torch::ones({t, t}, at::kBool).triu(1), -INFINITY).softmax(-1);
         return p.matmul(part(2)).transpose(1, 2).reshape({b, t, c});
       }},
      {"embedding", [](int64_t, int64_t c) -> std::vector<Sizes> { return {{11, c}}; },
       [](V v, I ids) { return embedding(ids, v[0]); },
       [](T x, I ids) { return torch::embedding(x[0], ids); }},
      {"linear_cross_entropy",
       [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, c}, {wide, c}}; },
       [](V v, I ids) { return linear_cross_entropy(v[0], v[1], ids, 3); },
       [](T x, I ids) {
         return torch::cross_entropy_loss(torch::linear(x[0], x[1]), ids, {}, at::Reduction::Sum) /
                3;
       }},
      {"linear_cross_entropy over `columns` classes",
       [classes](int64_t r, int64_t c) -> std::vector<Sizes> {
         return {{classes(r), wide}, {c, wide}};
       },
       [](V v, I ids) { return linear_cross_entropy(v[0], v[1], ids.remainder(v[1].size(0)), 3); },
       [](T x, I ids) {
         return torch::cross_entropy_loss(torch::linear(x[0], x[1]), ids.remainder(x[1].size(0)),
                                          {}, at::Reduction::Sum) /
                3;
       }},
      {"dropout", [](int64_t r, int64_t c) -> std::vector<Sizes> { return {{r, c}}; },
       [](V v, I) {
         const TrainingStep step(step_random);
         return dropout(v[0], 0.4, 11);
       },
       [](T x, I) {  // the op table checks the mask itself
         const TrainingStep step(step_random);
         return x[0] * dropout(Variable(torch::ones(x[0].sizes(), at::kDouble)), 0.4, 11).data();
       }}};

  all[7].scale = 8;  // two matmuls and a softmax, each rounded
  all[7].least_rows =
      1;  // ATen's kernel, which handles empty tensors, divides by the number of positions
  all[8].id_limit = 11;
  all[9].id_limit = all[10].id_limit = wide;
  all[11].least_rows = 1;  // dim 0 is the batch, which is not empty in a training step
  return all;
}

struct Result {
  at::Tensor y;
  Tensors grads;
};

/// Runs an op for a shape, a dtype, and layouts of the inputs and (last) of the cotangent.
/// Describes all differences from the oracle.
class Checker {
 public:
  explicit Checker(const LayoutCase& c) : c_(c) {}

  std::string run(int64_t rows, int64_t columns, at::ScalarType dtype,
                  const std::vector<Layout>& layouts_of) {
    problem_.clear();
    torch::manual_seed(static_cast<uint64_t>(rows * 1000 + columns));
    Tensors x;
    for (const auto& sizes : c_.inputs(rows, columns))
      x.push_back(lay(torch::randn(sizes).to(dtype), layouts_of[x.size()]));
    at::Tensor ids;
    if (c_.id_limit > 0) {
      const int64_t n = c_.op.starts_with("linear") ? x[0].size(0) : rows;
      ids = lay(torch::randint(1, c_.id_limit, {n}, at::kLong), layouts_of[0]);
      if (c_.op == "embedding" && n % 3 == 0)
        ids = lay(ids.reshape({3, n / 3}).contiguous(), layouts_of[0]);
    }
    Tensors before, exact;
    for (const auto& t : x) {
      before.push_back(t.clone());
      exact.push_back(t.to(at::kDouble).contiguous().clone().requires_grad_());
    }
    std::vector<Variable> in;
    for (const auto& t : x) in.push_back(Variable::parameter(t));
    const Variable y = c_.ours(in, ids);
    const at::Tensor dy = lay(torch::randn(y.sizes()).to(y.dtype()), layouts_of.back());
    const auto ours = grad(y, in, Variable(dy));
    const at::Tensor wanted = c_.oracle(exact, ids.defined() ? ids.contiguous() : ids);
    const auto grads = torch::autograd::grad({wanted}, exact, {dy.to(at::kDouble).contiguous()},
                                             false, false, /*allow_unused=*/true);
    // In low precision, as in the op table, a result is rounded once, and the terms of its sum are
    // rounded a few times. In float32, expanded inputs make sums of up to 129 equal terms, whose
    // roundings of 2^-24 add up to 2^-17 and do not cancel.
    const double spacing = dtype == at::kFloat ? 0x1p-19 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    compare("forward", y.data(), wanted.detach(), spacing);
    for (size_t i = 0; i < x.size(); ++i) {
      compare(str("gradient ", i), ours[i].data(), grads[i], spacing);
      if (!torch::equal(x[i], before[i])) problem_ += str("input ", i, " was written to; ");
    }
    return problem_;
  }

 private:
  void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& wanted,
               double spacing) {
    if (!ours.defined() || ours.sizes() != wanted.sizes()) {
      problem_ += str(what, " is ", describe(ours), " instead of ", describe(wanted), "; ");
    } else if (ours.numel() > 0) {
      const double off = (ours.to(at::kDouble) - wanted).abs().max().item<double>();
      // The added 1 allows for terms near 1 that cancel. A wrong layout causes errors as large as
      // the terms.
      const double allowed = spacing * c_.scale * (1 + wanted.abs().max().item<double>());
      if (!(off <= allowed)) problem_ += str(what, " is off by ", off, ", allowed ", allowed, "; ");
    }
  }

  const LayoutCase& c_;
  std::string problem_;
};

TEST_CASE("ops with CPU kernels take inputs of any layout and size", "[memory_layout]") {
  constexpr std::array<int64_t, 9> sizes{0, 1, 3, 17, 31, 33, 63, 65, 129};
  for (const auto& c : layout_cases()) {
    const size_t inputs = c.inputs(1, 1).size();
    Checker checker(c);
    const auto check = [&](int64_t rows, int64_t columns, const std::vector<Layout>& layouts_of) {
      if (rows < c.least_rows || columns < c.least_columns) return;
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        std::string problem;
        try {
          problem = checker.run(rows, columns, dtype, layouts_of);
        } catch (const std::exception& e) {
          problem = e.what();
        }

        if (problem.empty()) continue;
        std::string where = str(c.op, " ", rows, " x ", columns, " ", dtype_name(dtype), " (");
        for (const Layout l : layouts_of) where += str(name(l), ", ");
        FAIL_CHECK(where << "the cotangent's last): " << problem);
      }
    };

    // Try each size as the number of rows and of columns, with the same layout for all inputs.
    for (const Layout l : layouts) {
      const std::vector<Layout> alike(inputs + 1, l);
      for (const int64_t n : sizes) {
        check(n, 33, alike);
        if (n != 33) check(17, n, alike);
        if (l == Layout::sliced && n != 33 && n != 17) check(n, n, alike);
      }
    }

    // Give another layout to one input at a time, or to the cotangent.
    for (size_t i = 0; i <= inputs; ++i) {
      for (const Layout l : layouts) {
        std::vector<Layout> one(inputs + 1, Layout::contiguous);
        one[i] = l;
        check(17, 33, one);
        check(65, 31, one);
      }
    }
  }
  SUCCEED("all compared");
}

TEST_CASE("each layout has the strides that its name promises", "[memory_layout]") {
  const at::Tensor t = torch::randn({3, 4});
  CHECK(lay(t, Layout::transposed).strides() == at::IntArrayRef({1, 3}));
  CHECK(lay(t, Layout::sliced).strides() == at::IntArrayRef({9, 1}));
  CHECK(lay(t, Layout::sliced).storage_offset() == 3 * 9 + 3);
  CHECK(lay(t, Layout::sliced).equal(t));
  CHECK(lay(t, Layout::rows_expanded).strides() == at::IntArrayRef({0, 1}));
  CHECK(lay(t, Layout::columns_expanded).stride(1) == 0);
}

}  // namespace
