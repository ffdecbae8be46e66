// Tests of sums of rows, softmax and log softmax against float64, on every set of vector
// instructions and any number of threads.
#include "core/kernels/row_ops.h"

#include <ATen/Parallel.h>

#include <functional>

#include "core/rows.h"
#include "core/sum.h"
#include "tests/support/catch.h"
#include "tests/support/vector_sets.h"

namespace {

using namespace lathe;
using namespace lathe::test;

constexpr int64_t lengths[]{16, 17, 31, 33, 63, 64, 65, 1000, 1024, 1025, 32768};

TEST_CASE("sums of rows are exact up to rounding, on any number of threads", "[row_ops]") {
  torch::manual_seed(6);
  const int threads = at::get_num_threads();
  for (const int64_t columns : lengths) {
    const at::Tensor x = torch::randn({3, columns}) + 1;
    // Each addition has a rounding error of at most half a unit in the last place of a partial sum,
    // and no partial sum exceeds the sum of all absolute values. An element takes part in at most
    // 64 + 32 + 6 additions.
    const at::Tensor bound = x.abs().to(at::kDouble).sum(1) * 102 * 6e-8;
    const at::Tensor exact = x.to(at::kDouble).sum(1);
    on_every_set([&](const std::string& set) {
      INFO(set << ", " << columns);
      at::set_num_threads(1);
      const at::Tensor y = fixed_sum(x, {1});
      CHECK((y - exact).abs().le(bound).all().item<bool>());
      at::set_num_threads(2);
      CHECK(fixed_sum(x, {1}).equal(y));
      CHECK(fixed_sum_to(x, {3, 1}).view(-1).equal(y));
      // Test rows of a wider matrix, and expanded numbers.
      CHECK(fixed_sum(torch::cat({x, x}, 1).slice(1, 0, columns), {1}).equal(y));
      const at::Tensor expanded = x.slice(1, 0, 1).expand({3, columns});
      CHECK(fixed_sum(expanded, {1}).equal(fixed_sum(expanded.contiguous(), {1})));
    });
  }
  at::set_num_threads(threads);

  at::Tensor special = torch::ones({3, 20});
  special[0][19] = NAN;
  special[1][3] = INFINITY;
  special[2][3] = INFINITY;
  special[2][18] = -INFINITY;
  const at::Tensor y = fixed_sum(special, {1});
  CHECK(y[0].isnan().item<bool>());
  CHECK(y[1].item<float>() == INFINITY);
  CHECK(y[2].isnan().item<bool>());
}

TEST_CASE("softmax and log softmax of rows, and their gradients, agree with float64", "[row_ops]") {
  torch::manual_seed(7);
  const int threads = at::get_num_threads();
  const auto worst = [](const at::Tensor& ours, const at::Tensor& wanted) {
    return (ours.to(at::kDouble) - wanted).abs().max().item<double>() /
           wanted.abs().max().item<double>();
  };
  for (const int64_t columns : lengths) {
    // The values are far from zero, so that their exponentials overflow, and some are masked.
    at::Tensor x = torch::randn({5, columns}) * 3 + 200;
    x.slice(1, columns / 2 + 1)
        .masked_fill_(torch::rand({5, columns - columns / 2 - 1}) < 0.3, -INFINITY);
    const at::Tensor dy = torch::randn({5, columns});
    const at::Tensor exact = x.to(at::kDouble).softmax(1),
                     log_exact = x.to(at::kDouble).log_softmax(1);
    const at::Tensor up = dy.to(at::kDouble);

    on_every_set([&](const std::string& set) {
      INFO(set << ", " << columns);
      std::vector<at::Tensor> before;
      for (const int count : {1, 2}) {
        at::set_num_threads(count);
        const at::Tensor y = row_softmax(x), dx = row_softmax_gradient(dy, y),
                         log_y = row_log_softmax(x), log_dx = row_log_softmax_gradient(dy, log_y);
        // An exponential has an error of two units in the last place. Its argument, of magnitude up
        // to 256, has a rounding error of half a unit in the last place.
        CHECK(worst(y, exact) < 3e-5);
        const at::Tensor p = y.to(at::kDouble), wanted = p * (up - (p * up).sum(1, true));
        CHECK(worst(dx, wanted) < 2e-6);

        const at::Tensor finite = x.isfinite();
        CHECK(worst(log_y.masked_select(finite), log_exact.masked_select(finite)) < 3e-6);
        CHECK(log_y.masked_select(finite.logical_not()).eq(-INFINITY).all().item<bool>());
        const at::Tensor log_wanted = up - log_y.to(at::kDouble).exp() * up.sum(1, true);
        CHECK(worst(log_dx, log_wanted) < 2e-6);

        if (count == 2) {
          CHECK(y.equal(before[0]));
          CHECK(dx.equal(before[1]));
          CHECK(log_dx.equal(before[2]));
        }
        before = {y, dx, log_dx};
      }
    });
  }
  at::set_num_threads(threads);

  // As in ATen, the result of a row with a NaN, or with nothing but -infinity, is NaN. The results
  // of other rows are not NaN.
  at::Tensor x = torch::randn({3, 40});
  x[0][7] = NAN;
  x[1].fill_(-INFINITY);
  for (const at::Tensor& y : {row_softmax(x), row_log_softmax(x)}) {
    CHECK(y.slice(0, 0, 2).isnan().all().item<bool>());
    CHECK(y[2].isfinite().all().item<bool>());
  }
}

}  // namespace
