// Tests of the exchange of gradients on several processes: parameters that have a gradient on all
// ranks, on some of them, or on none.
#include "dist/exchange.h"

#include <cmath>
#include <utility>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "autograd/ops.h"
#include "dist/group.h"
#include "tests/dist/ranks.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;

/// Parameters in separate buckets, and the exchange of their gradients.
struct Exchanged {
  std::vector<NamedParameter> parameters;
  ShardLayout layout;
  ExchangeHistory history{};

  explicit Exchanged(std::vector<NamedParameter> all)
      : parameters(std::move(all)),
        layout(parameters, std::vector<bool>(parameters.size(), true),
               {.bucket_bytes = 1, .ranks = world().data().size}) {}

  /// Runs a backward pass in which parameter 0 and the parameters `used` have the gradient `factor`
  /// on this rank. Returns the bytes that this rank sent.
  int64_t step(const std::vector<size_t>& used, double factor) {
    for (const NamedParameter& p : parameters) p.parameter.leaf().grad.reset();
    GradientExchange exchange(world(), parameters, layout, GradientExchange::Result::all, history,
                              [](size_t) {});
    exchange.start_with_next_backward();
    const int64_t before = world().gradients().bytes_sent();
    Variable loss = sum(parameters[0].parameter) * factor;
    for (const size_t i : used) loss = loss + sum(parameters[i].parameter) * factor;
    backward(loss);
    exchange.finish();
    return world().gradients().bytes_sent() - before;
  }
  /// Exchanges gradients without a backward pass. One tensor, filled with `factor`, is the gradient
  /// of parameters 0 and 1.
  void step_with_shared_memory(double factor) {
    for (const NamedParameter& p : parameters) p.parameter.leaf().grad.reset();
    GradientExchange exchange(world(), parameters, layout, GradientExchange::Result::all, history,
                              [](size_t) {});
    exchange.start_with_next_backward();
    const at::Tensor both = torch::full({1000}, factor);
    parameters[0].parameter.leaf().grad = both.view({1000});  // this gradient is sent first
    parameters[1].parameter.leaf().grad = both;
    exchange.finish();
  }
  /// Returns a parameter's gradient, whose elements are all equal, or NaN if it has none.
  double gradient(size_t i) const {
    const at::Tensor& grad = parameters[i].parameter.grad();
    return grad.defined() ? grad[0].item<double>() : std::nan("");
  }
};

// The next test case runs this one in one process per rank.
TEST_CASE("a rank exchanges gradients", "[.rank_of_exchange]") {
  const auto placement = placement_from_environment();
  REQUIRE(placement);
  join_world(*placement, DistConfig());
  const auto parameter = [](const char* path) {
    return NamedParameter{path, Variable::parameter(torch::ones({1000})), Role::bias};
  };
  Exchanged e({parameter("always"), parameter("sometimes"), parameter("never")});
  const double mine = world().rank() + 1;

  // The first exchange sends all gradients, since it has no history.
  const int64_t first = e.step({}, mine), second = e.step({}, mine);
  CHECK(e.gradient(0) == 3);
  CHECK(std::isnan(e.gradient(1)));
  CHECK(std::isnan(e.gradient(2)));
  CHECK(second < 0.5 * static_cast<double>(first));

  // If only one rank uses a parameter, both ranks get this rank's gradient.
  std::vector<size_t> used;
  if (world().rank() == 1) used.push_back(1);
  e.step(used, mine);
  CHECK(e.gradient(0) == 3);
  CHECK(e.gradient(1) == 2);
  CHECK(std::isnan(e.gradient(2)));
  CHECK((e.history == ExchangeHistory{1, 1, 0}));

  // Parameter 1 is now sent with parameter 0, and later left out again.
  const int64_t both = e.step({1}, mine);
  CHECK(e.gradient(1) == 3);
  CHECK(both > second);
  e.step({}, mine);
  CHECK(std::isnan(e.gradient(1)));
  CHECK(e.step({}, mine) == second);

  // The sum of one gradient must not overwrite another gradient in the same memory.
  e.step_with_shared_memory(mine);
  CHECK(e.gradient(0) == 3);
  CHECK(e.gradient(1) == 3);
  world().wait_for_all();
}

TEST_CASE("a bucket without gradients is not sent until a rank has a gradient for it",
          "[exchange]") {
  lathe::test::check_on_ranks(2, "[.rank_of_exchange]");
}

}  // namespace
