// Compares random graphs with torch::autograd: shared results and views, hooks, retained graphs,
// accumulation. If a shared gradient is overwritten, a later pass or a tensor kept by a hook is
// wrong.
#include <cstdlib>
#include <deque>
#include <random>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;

/// The same value in both frameworks. `theirs` is the tensor that torch's op returned, not a copy,
/// so a hook on it gets the same gradient as a hook on `ours`.
struct Pair {
  Variable ours;
  at::Tensor theirs;
  std::string text;       ///< name of the value, or the expression that computed it
  bool replaced = false;  ///< whether a hook replaces the value's gradient
};

/// A tensor that code outside the engine holds, and a copy. At the end, the tensor must still equal
/// the copy.
struct Kept {
  std::string what;
  at::Tensor tensor, copy;
};

struct Tally {
  int passes = 0, gradients = 0, kept = 0, inner = 0;
};

class Fuzz {
 public:
  /// Creates our tensors in `type` and torch's in float64.
  Fuzz(uint64_t seed, at::ScalarType type, Tally& tally)
      : random_(seed), type_(type), tally_(tally) {
    torch::manual_seed(seed);
  }

  /// Runs one or two graphs over the same parameters, each once or more; returns the problems.
  std::string run() {
    const int64_t rounds = 1 + draw(2);
    for (int64_t round = 0; round < rounds && problem_.empty(); ++round) {
      nodes_.clear();
      const Pair root = build();
      if (problem_.empty()) passes(root);
    }
    for (const auto& k : kept_) {
      if (!torch::equal(k.tensor, k.copy)) note(k.what + " was changed");
    }
    return problem_.empty() ? "" : problem_ + "\n" + program_;
  }

  const std::string& program() const { return program_; }

 private:
  using Sizes = std::vector<int64_t>;

  int64_t draw(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  void tell(const std::string& line) { program_ += line + "\n"; }
  void note(const std::string& text) { problem_ += text + "; "; }
  void keep(const std::string& what, const at::Tensor& t) {
    kept_.push_back({.what = what, .tensor = t, .copy = t.clone()});
  }

  at::Tensor fresh(at::IntArrayRef sizes) const { return torch::randn(sizes, type_); }
  static at::Tensor exact(const at::Tensor& t) {
    return t.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  /// Returns the allowed error relative to 1 plus the largest value. In float64, only the order of
  /// sums of about a hundred terms near 1 differs. In float32, a dozen ops in a row can make a
  /// rounding of 2^-24 a few thousand times as large. An overwritten gradient is off by far more.
  double tolerance() const { return type_ == at::kDouble ? 1e-9 : 1e-2; }

  Pair parameter(const Sizes& sizes) {
    const at::Tensor value = fresh(sizes);
    parameters_.push_back({Variable::parameter(value), exact(value).requires_grad_(),
                           str("p", parameters_.size(), describe(at::IntArrayRef(sizes)))});
    return parameters_.back();
  }
  /// Returns a value of these sizes: an existing one or a new parameter.
  Pair of(const Sizes& sizes) {
    std::vector<const Pair*> found;
    for (const auto* list : {&nodes_, &parameters_}) {
      for (const auto& p : *list) {
        if (p.ours.sizes() == at::IntArrayRef(sizes)) found.push_back(&p);
      }
    }
    if (found.empty() || draw(3) == 0) return parameter(sizes);
    return *found[static_cast<size_t>(draw(static_cast<int64_t>(found.size())))];
  }
  /// Returns any value; newer values are more likely, so that graphs become deep.
  Pair any() {
    static const std::vector<Sizes> some{{3, 4}, {4, 3}, {2, 3, 4}, {12}, {4}, {1, 4}, {3, 1}};
    if (draw(4) == 0 || (nodes_.empty() && parameters_.empty()))
      return parameter(some[static_cast<size_t>(draw(static_cast<int64_t>(some.size())))]);
    if (!nodes_.empty() && draw(3) > 0)
      return nodes_[nodes_.size() - 1 -
                    static_cast<size_t>(
                        draw(std::min<int64_t>(3, static_cast<int64_t>(nodes_.size()))))];
    const auto& list = nodes_.empty() || draw(2) == 0 ? parameters_ : nodes_;
    if (list.empty()) return nodes_.back();
    return list[static_cast<size_t>(draw(static_cast<int64_t>(list.size())))];
  }

  static Sizes sizes_of(const Pair& p) { return p.ours.sizes().vec(); }

  /// Returns a view of a value. The view shares the value's storage if ATen can do that.
  Pair view(const Pair& a) {
    const int64_t dims = a.ours.dim();
    if (dims == 0)
      return {reshape(a.ours, {1}), a.theirs.reshape({1}), str("reshape(", a.text, ", 1)")};

    const int64_t d = draw(dims), e = draw(dims), n = a.ours.size(d);
    switch (draw(5)) {
      case 0:
        return {reshape(a.ours, {-1}), a.theirs.reshape({-1}), str("reshape(", a.text, ", -1)")};
      case 1:
        return {reshape(a.ours, a.ours.sizes()), a.theirs.reshape(a.theirs.sizes()),
                str("alias(", a.text, ")")};
      case 2:
        return {transpose(a.ours, d, e), a.theirs.transpose(d, e),
                str("transpose(", a.text, ", ", d, ", ", e, ")")};
      case 3: {
        const int64_t from = draw(n), step = 1 + draw(2);
        return {slice(a.ours, d, from, n, step), a.theirs.slice(d, from, n, step),
                str("slice(", a.text, ", ", d, ", ", from, ", end, ", step, ")")};
      }

      default: {
        Sizes sizes = sizes_of(a);
        sizes.insert(sizes.begin(), 1 + draw(2));
        return {expand(a.ours, sizes), a.theirs.expand(sizes),
                str("expand(", a.text, ", ", describe(at::IntArrayRef(sizes)), ")")};
      }
    }
  }

  static Pair sum_of(const Pair& a, const Pair& b) {
    return {add(a.ours, b.ours), a.theirs + b.theirs, str("add(", a.text, ", ", b.text, ")")};
  }
  static Pair tanh_of(const Pair& a) {
    return {tanh(a.ours), a.theirs.tanh(), str("tanh(", a.text, ")")};
  }

  Pair step() {
    const Pair a = any();
    const int64_t dims = a.ours.dim();
    const int64_t d = dims > 0 ? draw(dims) : 0;

    if (a.ours.numel() > 60)
      return {sum(a.ours, d), a.theirs.sum(d), str("sum(", a.text, ", ", d, ")")};
    switch (draw(16)) {
      case 0:
      case 1: {  // two views, or the values themselves, share one gradient
        const Pair b = of(sizes_of(a)), v = view(a), w = view(b);
        return v.ours.sizes() == w.ours.sizes() ? sum_of(v, w) : sum_of(a, b);
      }
      case 2: return sum_of(a, of(sizes_of(a)));
      case 3: {  // b is broadcast
        const Pair b = dims > 0 ? of({a.ours.size(-1)}) : of({});
        return {sub(a.ours, b.ours), a.theirs - b.theirs, str("sub(", a.text, ", ", b.text, ")")};
      }

      case 4: {
        const Pair b = of(sizes_of(a));
        return {mul(a.ours, b.ours), a.theirs * b.theirs, str("mul(", a.text, ", ", b.text, ")")};
      }
      case 5: {
        if (dims < 2) return view(a);
        const Pair b = draw(3) == 0 ? Pair{transpose(a.ours, -1, -2), a.theirs.transpose(-1, -2),
                                           a.text + "^T"}
                                    : of({a.ours.size(-1), 1 + draw(4)});
        return {matmul(a.ours, b.ours), a.theirs.matmul(b.theirs),
                str("matmul(", a.text, ", ", b.text, ")")};
      }
      case 6: {
        const bool keepdim = draw(2) == 0;
        if (dims == 0) return {sum(a.ours), a.theirs.sum(), str("sum(", a.text, ")")};
        return {sum(a.ours, d, keepdim), a.theirs.sum(d, keepdim),
                str("sum(", a.text, ", ", d, ", ", keepdim, ")")};
      }
      case 7:
        if (dims == 0) return {mean(a.ours), a.theirs.mean(), str("mean(", a.text, ")")};
        return {mean(a.ours, d), a.theirs.mean(d), str("mean(", a.text, ", ", d, ")")};

      case 8: {
        if (dims == 0) return view(a);
        const Pair b = of(sizes_of(a));
        return {cat({a.ours, b.ours, a.ours}, d), torch::cat({a.theirs, b.theirs, a.theirs}, d),
                str("cat({", a.text, ", ", b.text, ", ", a.text, "}, ", d, ")")};
      }
      case 9:  // near 0 the two frameworks could round to different signs
        if (a.theirs.detach().abs().min().item<double>() < 0.1 * tolerance()) return tanh_of(a);
        return {relu(a.ours), a.theirs.relu(), str("relu(", a.text, ")")};
      case 10:
        return {exp(mul_scalar(a.ours, 0.25)), (a.theirs * 0.25).exp(),
                str("exp(", a.text, " / 4)")};
      case 11: {
        if (dims == 0) return view(a);
        const int64_t c = a.ours.size(-1);
        const Pair w = of({c}), b = of({c});
        // With a smaller eps, the rounding errors in a row of nearly equal elements would be as
        // large as the result.
        return {layer_norm(a.ours, w.ours, b.ours, 0.1),
                torch::layer_norm(a.theirs, {c}, w.theirs, b.theirs, 0.1),
                str("layer_norm(", a.text, ", ", w.text, ", ", b.text, ")")};
      }

      case 12: {
        if (dims == 0) return view(a);
        const int64_t out = 1 + draw(4);
        Sizes sizes = sizes_of(a);
        sizes.back() = out;
        const Pair w = of({out, a.ours.size(-1)}), b = of({out});
        const std::string text = str("linear(", a.text, ", ", w.text, ", ", b.text);
        if (draw(2) == 0)
          return {linear(a.ours, w.ours, b.ours), torch::linear(a.theirs, w.theirs, b.theirs),
                  text + ")"};
        const Pair r = of(sizes);
        return {linear(a.ours, w.ours, b.ours, r.ours),
                torch::linear(a.theirs, w.theirs, b.theirs) + r.theirs, text + ", " + r.text + ")"};
      }
      case 13: return {contiguous(a.ours), a.theirs.clone(), str("contiguous(", a.text, ")")};
      default: return view(a);
    }
  }

  Pair build() {
    const int64_t steps = 1 + draw(14);
    for (int64_t i = 0; i < steps; ++i) {
      Pair next = step();
      // Keep values near 1, so that one tolerance fits all.
      if (next.theirs.detach().abs().max().item<double>() > 6) next = tanh_of(next);
      tell(str("n", i, " = ", next.text));
      next.text = str("n", i);
      compare("the value of " + next.text, next.ours.data(), next.theirs.detach());
      nodes_.push_back(next);
      if (draw(3) == 0) hook(nodes_.back());
    }

    if (draw(4) == 0)
      hook(parameters_[static_cast<size_t>(draw(static_cast<int64_t>(parameters_.size())))]);
    if (draw(3) == 0) return nodes_.back();  // backward of this root needs a cotangent

    const Pair& last = nodes_.back();
    Pair root{sum(last.ours), last.theirs.sum(), str("sum(", last.text, ")")};
    for (const auto& p : nodes_) {
      if (draw(2) == 0) continue;
      if (draw(2) == 0) {
        root = sum_of(root, {sum(p.ours), p.theirs.sum(), str("sum(", p.text, ")")});
      } else {
        const at::Tensor by = fresh(p.ours.sizes());
        root = sum_of(root, {sum(mul(p.ours, Variable(by))), (p.theirs * exact(by)).sum(),
                             str("sum(", p.text, " * random)")});
      }
    }

    return root;
  }

  /// Registers a hook of one of three kinds: the hook keeps the gradient, multiplies it, or
  /// replaces it by a fixed tensor.
  void hook(Pair& p) {
    const std::string where = "a gradient kept by a hook on " + p.text;

    switch (draw(4)) {
      case 0:
      case 1:
        tell("hook that keeps, on " + p.text);
        p.ours.register_hook([this, where](const at::Tensor& g) {
          keep(where, g);
          ++tally_.kept;
          return at::Tensor();
        });
        break;

      case 2:
        p.replaced = true;
        tell("hook that multiplies, on " + p.text);
        p.ours.register_hook([](const at::Tensor& g) { return g * 1.5; });
        p.theirs.register_hook([](const at::Tensor& g) { return g * 1.5; });
        break;

      default: {
        p.replaced = true;
        tell("hook that replaces, on " + p.text);
        const at::Tensor fixed = fresh(p.ours.sizes()), theirs = exact(fixed);
        keep("a gradient given by a hook", fixed);
        p.ours.register_hook([fixed](const at::Tensor&) { return fixed; });
        p.theirs.register_hook([theirs](const at::Tensor&) { return theirs; });
      }
    }
  }

  void passes(const Pair& root) {
    at::Tensor dy;
    if (root.ours.numel() != 1 || root.ours.dim() != 0) {
      dy = fresh(root.ours.sizes());
      keep("the caller's cotangent", dy);
    }
    const at::Tensor theirs = dy.defined() ? exact(dy) : dy;
    const int64_t times = draw(3);  // 0: only grad() runs
    const bool inner = times == 0 || draw(3) == 0;
    for (int64_t i = 0; i < times; ++i) {
      const bool retain = i + 1 < times || inner;
      tell(str("backward of ", root.text, retain ? ", retained" : ""));
      backward(root.ours, dy, retain);
      accumulate(root, theirs, retain);
      ++tally_.passes;
      compare();
    }
    if (inner) inner_gradients(root, dy, theirs);
    compare();  // grad() does not change .grad
  }

  /// Adds the gradients of a pass of torch to the sums. torch's backward() is not used: it may keep
  /// a view of another tensor as a parameter's gradient, and write to it in the next pass.
  void accumulate(const Pair& root, const at::Tensor& dy, bool retain) {
    std::vector<at::Tensor> leaves;
    for (const auto& p : parameters_) leaves.push_back(p.theirs);
    const auto pass =
        torch::autograd::grad({root.theirs}, leaves, {dy}, retain, false, /*allow_unused=*/true);
    sums_.resize(leaves.size());
    for (size_t i = 0; i < pass.size(); ++i) {
      if (pass[i].defined()) sums_[i] = sums_[i].defined() ? sums_[i] + pass[i] : pass[i].clone();
    }
  }

  void compare() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor &ours = parameters_[i].ours.grad(),
                       theirs = i < sums_.size() ? sums_[i] : at::Tensor();
      compare(parameters_[i].text, ours, theirs);
      // The optimizer needs contiguous gradients.
      if (ours.defined() && !ours.is_contiguous())
        note("the gradient of " + parameters_[i].text + " is not contiguous");
      tally_.gradients += ours.defined() ? 1 : 0;
    }
  }

  void inner_gradients(const Pair& root, const at::Tensor& dy, const at::Tensor& theirs) {
    std::vector<Variable> xs;
    std::vector<at::Tensor> txs;
    std::vector<std::string> names;

    for (const auto* list : {&nodes_, &parameters_}) {
      for (const auto& p : *list) {
        // If a hook replaced the gradient, torch returns the gradient before the hook if the
        // gradient flows further back, and otherwise the gradient after the hook.
        if (p.replaced || draw(2) == 0) continue;
        xs.push_back(p.ours);
        txs.push_back(p.theirs);
        names.push_back("grad()'s result for " + p.text);
      }
    }
    if (xs.empty()) return;

    tell("grad of " + root.text);
    const auto ours = grad(root.ours, xs, Variable(dy));
    const auto wanted =
        torch::autograd::grad({root.theirs}, txs, {theirs}, false, false, /*allow_unused=*/true);

    for (size_t i = 0; i < xs.size(); ++i) {
      compare(names[i], ours[i].data(), wanted[i]);
      if (ours[i].defined()) keep(names[i], ours[i].data());
    }
    ++tally_.inner;
  }

  void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs) {
    if (ours.defined() != theirs.defined())
      return note(what + (ours.defined() ? " has" : " lacks") + " a gradient");
    if (!ours.defined()) return;
    const double off = (ours.to(at::kDouble) - theirs).abs().max().item<double>();
    const double allowed = tolerance() * (1 + theirs.abs().max().item<double>());
    if (!(off <= allowed)) note(str(what, " ", describe(ours), " is off by ", off));
  }

  std::mt19937_64 random_;
  at::ScalarType type_;
  Tally& tally_;
  std::vector<Pair> parameters_, nodes_;
  std::vector<at::Tensor> sums_;  // the expected gradient of each parameter
  std::deque<Kept> kept_;
  std::string problem_, program_;
};

void run_graphs(int graphs, at::ScalarType type) {
  const char* given = std::getenv("LATHE_TEST_FUZZ_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240;
  Tally tally;
  for (uint64_t i = 0; i < static_cast<uint64_t>(graphs); ++i) {
    INFO("LATHE_TEST_FUZZ_SEED=" << first + i << " runs this graph first");
    std::string problem;
    Fuzz fuzz(first + i, type, tally);
    try {
      problem = fuzz.run();
    } catch (const std::exception& e) {
      problem = str(std::string(e.what()).substr(0, 300), "\n", fuzz.program());
    }
    CHECK(problem == "");
  }
  // Enough passes and gradients of each kind were compared.
  CHECK(tally.passes > graphs / 2);
  CHECK(tally.gradients > 4 * graphs);
  CHECK(tally.kept > graphs / 4);
  CHECK(tally.inner > graphs / 4);
}

TEST_CASE(
    "random graphs have torch's gradients in every pass, and no tensor held outside of the engine "
    "is changed",
    "[random_graphs]") {
  run_graphs(400, at::kDouble);
}

TEST_CASE("random float32 graphs, whose kernels add to gradients in place, have torch's gradients",
          "[random_graphs]") {
  run_graphs(400, at::kFloat);
}

}  // namespace
