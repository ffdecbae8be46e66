// Random graphs against torch::autograd: shared results and views, hooks, kept graphs, accumulation. What goes wrong
// when a gradient that two places hold is written to shows in a later pass or in what a hook kept.
#include <torch/torch.h>
#undef CHECK

#include <cstdlib>
#include <deque>
#include <random>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "tests/catch.h"

namespace {

using namespace lathe;

constexpr uint64_t graphs = 400;

/// The same value in both frameworks. Nodes of torch are used as given, so hooks on them mean the same.
struct Pair {
  Variable ours;
  at::Tensor theirs;
};

/// A tensor that something outside the engine holds, and what it must still be at the end.
struct Kept {
  std::string what;
  at::Tensor tensor, copy;
};

struct Tally {
  int passes = 0, gradients = 0, kept = 0, inner = 0;
};

class Fuzz {
 public:
  Fuzz(uint64_t seed, Tally& tally) : random_(seed), tally_(tally) { torch::manual_seed(seed); }

  /// One or two graphs over the same parameters, each run once or more; returns what went wrong.
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
    return problem_;
  }

 private:
  using Sizes = std::vector<int64_t>;

  int64_t draw(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  void note(const std::string& text) { problem_ += text + "; "; }
  void keep(const std::string& what, const at::Tensor& t) { kept_.push_back({what, t, t.clone()}); }

  Pair parameter(const Sizes& sizes) {
    const at::Tensor value = torch::randn(sizes, at::kDouble);
    parameters_.push_back({Variable::parameter(value.clone()), value.clone().requires_grad_()});
    return parameters_.back();
  }
  /// A value of these sizes: one that is there already, or a new parameter.
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
  /// Any value; the newest ones are likelier, so that graphs are deep too.
  Pair any() {
    static const std::vector<Sizes> some{{3, 4}, {4, 3}, {2, 3, 4}, {12}, {4}, {1, 4}, {3, 1}};
    if (draw(4) == 0 || (nodes_.empty() && parameters_.empty()))
      return parameter(some[static_cast<size_t>(draw(static_cast<int64_t>(some.size())))]);
    if (!nodes_.empty() && draw(3) > 0)
      return nodes_[nodes_.size() - 1 -
                    static_cast<size_t>(draw(std::min<int64_t>(3, static_cast<int64_t>(nodes_.size()))))];
    const auto& list = nodes_.empty() || draw(2) == 0 ? parameters_ : nodes_;
    if (list.empty()) return nodes_.back();
    return list[static_cast<size_t>(draw(static_cast<int64_t>(list.size())))];
  }

  static Sizes sizes_of(const Pair& p) { return p.ours.sizes().vec(); }

  /// One view of a value, which shares its storage where ATen can.
  Pair view(const Pair& a) {
    const int64_t dims = a.ours.dim();
    if (dims == 0) return {reshape(a.ours, {1}), a.theirs.reshape({1})};
    const int64_t d = draw(dims), e = draw(dims), n = a.ours.size(d);
    switch (draw(5)) {
      case 0: return {reshape(a.ours, {-1}), a.theirs.reshape({-1})};
      case 1: return {reshape(a.ours, a.ours.sizes()), a.theirs.reshape(a.theirs.sizes())};
      case 2: return {transpose(a.ours, d, e), a.theirs.transpose(d, e)};
      case 3: {
        const int64_t from = draw(n), step = 1 + draw(2);
        return {slice(a.ours, d, from, n, step), a.theirs.slice(d, from, n, step)};
      }
      default: {
        Sizes sizes = sizes_of(a);
        sizes.insert(sizes.begin(), 1 + draw(2));
        return {expand(a.ours, sizes), a.theirs.expand(sizes)};
      }
    }
  }

  Pair step() {
    Pair a = any();
    if (a.ours.numel() > 60) return {sum(a.ours, 0), a.theirs.sum(0)};
    const int64_t dims = a.ours.dim();
    const int64_t d = dims > 0 ? draw(dims) : 0;
    switch (draw(16)) {
      case 0:
      case 1: {  // two views, or the values themselves, get one gradient
        const Pair b = of(sizes_of(a)), v = view(a), w = view(b);
        if (v.ours.sizes() == w.ours.sizes()) return {add(v.ours, w.ours), v.theirs + w.theirs};
        return {add(a.ours, b.ours), a.theirs + b.theirs};
      }
      case 2: {
        const Pair b = of(sizes_of(a));
        return {add(a.ours, b.ours), a.theirs + b.theirs};
      }
      case 3: {  // broadcast
        const Pair b = dims > 0 ? of({a.ours.size(-1)}) : of({});
        return {sub(a.ours, b.ours), a.theirs - b.theirs};
      }
      case 4: {
        const Pair b = of(sizes_of(a));
        return {mul(a.ours, b.ours), a.theirs * b.theirs};
      }
      case 5: {
        if (dims < 2) return view(a);
        const Pair b = draw(3) == 0 ? Pair{transpose(a.ours, -1, -2), a.theirs.transpose(-1, -2)}
                                    : of({a.ours.size(-1), 1 + draw(4)});
        return {matmul(a.ours, b.ours), a.theirs.matmul(b.theirs)};
      }
      case 6: {
        const bool keepdim = draw(2) == 0;
        if (dims == 0) return {sum(a.ours), a.theirs.sum()};
        return {sum(a.ours, d, keepdim), a.theirs.sum(d, keepdim)};
      }
      case 7: return dims > 0 ? Pair{mean(a.ours, d), a.theirs.mean(d)} : Pair{mean(a.ours), a.theirs.mean()};
      case 8: {
        if (dims == 0) return view(a);
        const Pair b = of(sizes_of(a));
        return {cat({a.ours, b.ours, a.ours}, d), torch::cat({a.theirs, b.theirs, a.theirs}, d)};
      }
      case 9:  // near the kink the two could take different sides
        if (a.theirs.detach().abs().min().item<double>() < 1e-6) return {tanh(a.ours), a.theirs.tanh()};
        return {relu(a.ours), a.theirs.relu()};
      case 10: return {exp(mul_scalar(a.ours, 0.25)), (a.theirs * 0.25).exp()};
      case 11: {
        if (dims == 0) return view(a);
        const int64_t c = a.ours.size(-1);
        const Pair w = of({c}), b = of({c});
        // eps of 0.1: a row of nearly equal elements would make rounding as large as the result
        return {layer_norm(a.ours, w.ours, b.ours, 0.1), torch::layer_norm(a.theirs, {c}, w.theirs, b.theirs, 0.1)};
      }
      case 12: {
        if (dims == 0) return view(a);
        const int64_t out = 1 + draw(4);
        Sizes sizes = sizes_of(a);
        sizes.back() = out;
        const Pair w = of({out, a.ours.size(-1)}), b = of({out});
        if (draw(2) == 0) return {linear(a.ours, w.ours, b.ours), torch::linear(a.theirs, w.theirs, b.theirs)};
        const Pair r = of(sizes);
        return {linear(a.ours, w.ours, b.ours, r.ours), torch::linear(a.theirs, w.theirs, b.theirs) + r.theirs};
      }
      case 13: return {contiguous(a.ours), a.theirs.clone()};
      default: return view(a);
    }
  }

  Pair build() {
    const int64_t steps = 1 + draw(14);
    for (int64_t i = 0; i < steps; ++i) {
      Pair next = step();
      // Values stay near 1, so that one tolerance does for all.
      if (next.theirs.detach().abs().max().item<double>() > 6) next = {tanh(next.ours), next.theirs.tanh()};
      if (!torch::allclose(next.ours.data(), next.theirs.detach(), 1e-9, 1e-9)) note("forward values differ");
      nodes_.push_back(next);
      if (draw(3) == 0) hook(next, nodes_.size());
    }
    if (draw(4) == 0) hook(parameters_[static_cast<size_t>(draw(static_cast<int64_t>(parameters_.size())))], 0);
    if (draw(3) == 0) return nodes_.back();  // with a cotangent of its own
    Pair root{sum(nodes_.back().ours), nodes_.back().theirs.sum()};
    for (const auto& p : nodes_) {
      if (draw(2) == 0) continue;
      if (draw(2) == 0) {
        root = {add(root.ours, sum(p.ours)), root.theirs + p.theirs.sum()};
      } else {
        const at::Tensor by = torch::randn(p.ours.sizes(), at::kDouble);
        root = {add(root.ours, sum(mul(p.ours, Variable(by)))), root.theirs + (p.theirs * by).sum()};
      }
    }
    return root;
  }

  /// A hook of one of three kinds: keeps what it sees, gives another gradient, gives always the same tensor.
  void hook(const Pair& p, size_t number) {
    const std::string where = str("a gradient kept by a hook on ", number > 0 ? "node " : "a parameter", number);
    switch (draw(4)) {
      case 0:
      case 1:
        p.ours.register_hook([this, where](const at::Tensor& g) {
          keep(where, g);
          ++tally_.kept;
          return at::Tensor();
        });
        break;
      case 2:
        p.ours.register_hook([](const at::Tensor& g) { return g * 1.5; });
        p.theirs.register_hook([](const at::Tensor& g) { return g * 1.5; });
        break;
      default: {
        const at::Tensor fixed = torch::randn(p.ours.sizes(), at::kDouble), theirs = fixed.clone();
        keep("a gradient given by a hook", fixed);
        p.ours.register_hook([fixed](const at::Tensor&) { return fixed; });
        p.theirs.register_hook([theirs](const at::Tensor&) { return theirs; });
      }
    }
  }

  void passes(const Pair& root) {
    at::Tensor dy;
    if (root.ours.numel() != 1 || root.ours.dim() != 0) {
      dy = torch::randn(root.ours.sizes(), at::kDouble);
      keep("the caller's cotangent", dy);
    }
    const at::Tensor theirs = dy.defined() ? dy.clone() : dy;
    const int64_t times = draw(3);  // 0: by grad() alone
    const bool inner = times == 0 || draw(3) == 0;
    for (int64_t i = 0; i < times; ++i) {
      const bool retain = i + 1 < times || inner;
      backward(root.ours, dy, retain);
      root.theirs.backward(theirs, retain);
      ++tally_.passes;
      compare();
    }
    if (inner) inner_gradients(root, dy, theirs);
    compare();  // grad() leaves .grad alone
  }

  void compare() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor &ours = parameters_[i].ours.grad(), &theirs = parameters_[i].theirs.grad();
      compare(str("parameter ", i), ours, theirs);
      // The optimizer reads gradients as they lie.
      if (ours.defined() && !ours.is_contiguous()) note(str("the gradient of parameter ", i, " is not contiguous"));
      tally_.gradients += ours.defined() ? 1 : 0;
    }
  }

  void inner_gradients(const Pair& root, const at::Tensor& dy, const at::Tensor& theirs) {
    std::vector<Variable> xs;
    std::vector<at::Tensor> txs;
    for (const auto* list : {&nodes_, &parameters_}) {
      for (const auto& p : *list) {
        if (draw(2) == 0) continue;
        xs.push_back(p.ours);
        txs.push_back(p.theirs);
      }
    }
    if (xs.empty()) return;
    const auto ours = grad(root.ours, xs, Variable(dy));
    const auto wanted = torch::autograd::grad({root.theirs}, txs, {theirs}, false, false, /*allow_unused=*/true);
    for (size_t i = 0; i < xs.size(); ++i) compare(str("grad() ", i), ours[i].data(), wanted[i]);
    for (size_t i = 0; i < xs.size(); ++i) {
      if (ours[i].defined()) keep(str("the result ", i, " of grad()"), ours[i].data());
    }
    ++tally_.inner;
  }

  /// float64 on both sides: what differs is the order of sums, over at most some hundred terms near 1.
  void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& theirs) {
    if (ours.defined() != theirs.defined()) return note(what + (ours.defined() ? " has" : " lacks") + " a gradient");
    if (!ours.defined()) return;
    const double off = (ours - theirs).abs().max().item<double>();
    const double allowed = 1e-9 * (1 + theirs.abs().max().item<double>());
    if (!(off <= allowed)) note(str(what, " ", describe(ours), " is off by ", off));
  }

  std::mt19937_64 random_;
  Tally& tally_;
  std::vector<Pair> parameters_, nodes_;
  std::deque<Kept> kept_;
  std::string problem_;
};

TEST_CASE("random graphs have torch's gradients, pass after pass, and nothing that is held is changed", "[fuzz]") {
  const char* given = std::getenv("LATHE_TEST_FUZZ_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 20240;
  Tally tally;
  for (uint64_t i = 0; i < graphs; ++i) {
    INFO("LATHE_TEST_FUZZ_SEED=" << first + i << " runs this graph first");
    std::string problem;
    try {
      problem = Fuzz(first + i, tally).run();
    } catch (const Error& e) {
      problem = e.what();
    }
    CHECK(problem == "");
  }
  // The graphs do what they are for.
  CHECK(tally.passes > static_cast<int>(graphs) / 2);
  CHECK(tally.gradients > 4 * static_cast<int>(graphs));
  CHECK(tally.kept > static_cast<int>(graphs) / 4);
  CHECK(tally.inner > static_cast<int>(graphs) / 4);
}

}  // namespace
