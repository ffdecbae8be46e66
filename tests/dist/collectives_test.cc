// Tests of collectives as differentiable ops on several processes. Each process knows the inputs of
// all processes, so it compares its results and gradients with LibTorch's autograd.
#include "dist/collectives.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "dist/world.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"
#include "tests/support/torch_oracle.h"

namespace {

using namespace lathe;
using Tensors = std::vector<at::Tensor>;

/// A collective as Lathe's op, and as a function that computes the results of all ranks from their
/// inputs.
struct Collective {
  const char* name;
  std::function<Variable(const Variable&)> ours;
  std::function<Tensors(const Tensors&)> oracle;
};

at::Tensor total(const Tensors& x) { return torch::stack(x).sum(0); }

std::vector<Collective> collectives(int64_t ranks) {
  std::vector<Collective> all;
  all.push_back({"all_reduce", [](const Variable& x) { return all_reduce(x); },
                 [](const Tensors& x) { return Tensors(x.size(), total(x)); }});
  for (const int64_t dim : {0, 1, -1}) {
    all.push_back({"all_gather", [=](const Variable& x) { return all_gather(x, dim); },
                   [=](const Tensors& x) { return Tensors(x.size(), torch::cat(x, dim)); }});
    all.push_back({"reduce_scatter", [=](const Variable& x) { return reduce_scatter(x, dim); },
                   [=](const Tensors& x) { return total(x).chunk(ranks, dim); }});
    all.push_back({"all_to_all", [=](const Variable& x) { return all_to_all(x, dim); },
                   [=](const Tensors& x) {
                     Tensors out;
                     for (int64_t r = 0; r < ranks; ++r) {
                       Tensors parts;
                       for (const at::Tensor& one : x)
                         parts.push_back(one.chunk(ranks, dim)[static_cast<size_t>(r)]);
                       out.push_back(torch::cat(parts, dim));
                     }
                     return out;
                   }});
  }
  return all;
}

/// Returns one tensor per rank. Every process that passes the same seed gets the same tensors.
Tensors of_ranks(int64_t ranks, uint64_t seed, at::IntArrayRef sizes) {
  torch::manual_seed(seed);
  Tensors all;
  for (int64_t r = 0; r < ranks; ++r) all.push_back(torch::randn(sizes, at::kDouble));
  return all;
}

bool is_close(const at::Tensor& a, const at::Tensor& b) {
  // The tolerance allows for float64 sums of a few terms in another order.
  return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-12, 1e-12);
}

/// Checks values, gradients and second derivatives of the loss
/// sum over ranks of <weights, collective(x^3)>.
void check_collective(const Collective& c, int64_t ranks, size_t rank) {
  INFO(c.name);
  const at::IntArrayRef sizes{12, 24};
  Tensors x = of_ranks(ranks, 1, sizes), weights, cubes, gradients;
  for (at::Tensor& one : x) one.requires_grad_();
  for (const at::Tensor& one : x) cubes.push_back(one * one * one);
  const Tensors y = c.oracle(cubes);
  for (size_t r = 0; r < y.size(); ++r) weights.push_back(of_ranks(ranks, 2, y[r].sizes())[r]);

  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (size_t r = 0; r < y.size(); ++r) loss = loss + (weights[r] * y[r]).sum();
  const Tensors g = torch::autograd::grad({loss}, x, {}, std::nullopt, /*create_graph=*/true);
  at::Tensor of_gradients = torch::zeros({}, at::kDouble);
  for (const at::Tensor& one : g) of_gradients = of_gradients + (one * one).sum();
  const Tensors h = torch::autograd::grad({of_gradients}, x);

  Variable mine(x[rank].detach().clone());
  mine.requires_grad_();
  const Variable result = c.ours(mine * mine * mine);
  CHECK(is_close(result.data(), y[rank].detach()));
  const Variable own_loss = sum(result * Variable(weights[rank]));
  const Variable first = grad(own_loss, {mine}, {}, /*create_graph=*/true)[0];
  CHECK(is_close(first.data(), g[rank].detach()));
  const Variable second = grad(sum(first * first), {mine})[0];
  CHECK(is_close(second.data(), h[rank]));
}

/// Checks that sums are added in the order of a binary tree over the ranks. On four ranks, also
/// checks that another order gives other bits.
void check_order(int64_t ranks, size_t rank) {
  Tensors x = of_ranks(ranks, 3, {1000});
  for (at::Tensor& one : x) one = one.to(at::kFloat);
  at::Tensor tree = x[0] + x[1], in_turn = tree;
  if (ranks == 4) tree = tree + (x[2] + x[3]);
  if (ranks == 3) tree = tree + x[2];
  for (size_t r = 2; r < x.size(); ++r) in_turn = in_turn + x[r];
  CHECK(torch::equal(all_reduce(x[rank]), tree));
  if (ranks == 4) CHECK(!torch::equal(in_turn, tree));

  // In low precision the sum is rounded once.
  const at::Tensor low = x[rank].to(at::kBFloat16);
  at::Tensor once = torch::zeros({1000}, at::kFloat);
  for (const at::Tensor& one : x) once = once + one.to(at::kBFloat16).to(at::kFloat);
  CHECK(torch::allclose(all_reduce(low).to(at::kFloat), once.to(at::kBFloat16).to(at::kFloat),
                        0x1p-8, 0x1p-8));
  CHECK(all_reduce(torch::ones({}, at::kDouble)).item<double>() == static_cast<double>(ranks));
}

// The next test case runs this one in one process per rank.
TEST_CASE("a rank checks the collectives", "[.rank_of_collectives]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  join_world(*placement, DistConfig());
  const int64_t ranks = world().size();
  for (const Collective& c : collectives(ranks))
    check_collective(c, ranks, static_cast<size_t>(world().rank()));
  check_order(ranks, static_cast<size_t>(world().rank()));
  CHECK_THROWS_WITH(
      reduce_scatter(Variable(torch::zeros({ranks + 1}))),
      ContainsSubstring("reduce_scatter") && ContainsSubstring(std::to_string(ranks + 1)));
  world().wait_for_all();
}

TEST_CASE("collectives have the values, gradients and second derivatives of LibTorch's autograd",
          "[collectives]") {
  for (const int ranks : {2, 3, 4}) {
    lathe::test::check_on_ranks(ranks, "[.rank_of_collectives]");
  }
}

}  // namespace
