// Compares the CUDA kernels of norms, column sums and losses with their formulas. The kernels are
// compiled as C++ and run on the CPU (tests/support/cuda/).
#include "autograd/ops/kernel.h"
#include "core/dtype.h"
#include "core/kernels/activation.cuh"
#include "core/kernels/linear.cuh"
#include "core/kernels/loss.cuh"
#include "core/kernels/norm.cuh"
#include "tests/core/cuda_kernels.h"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("norms on a GPU agree with their formula", "[cuda_rows]") {
  torch::manual_seed(8);
  for (const auto& [rows, c] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 4}, {37, 68}, {9, 260}, {17, 1024}, {3, 1028}, {3, 4100}, {2, 8192}}) {
    const bool small = rows == 37;
    for (const bool rms : {false, true}) {
      for (const auto in : narrow_dtypes) {
        for (const auto other : narrow_dtypes) {
          if (!small && other != at::kFloat) continue;
          INFO(rows << " x " << c << (rms ? " rms " : " ") << dtype_name(in) << " "
                    << dtype_name(other));
          const ThreadOrder setting(orders[(rows + rms) % 3]);
          const at::Tensor x = (torch::randn({rows, c}) * 2 + 1).to(in),
                           dy = torch::randn({rows, c}).to(other);
          const at::Tensor w = torch::randn({c}), b = torch::randn({c});
          const at::Tensor mean = torch::empty({rows}), rstd = torch::empty({rows}),
                           dw = torch::empty({c}), db = torch::empty({c}),
                           y = torch::empty({rows, c}, other);
          at::Tensor before = torch::randn({rows, c}).to(in), dx = before.clone();
          const NormRows n{.rows = rows,
                           .columns = c,
                           .weight = w.const_data_ptr<float>(),
                           .bias = rms ? nullptr : b.const_data_ptr<float>(),
                           .mean = rms ? nullptr : mean.mutable_data_ptr<float>(),
                           .rstd = rstd.mutable_data_ptr<float>()};
          const at::Tensor partials = torch::full({norm_sum_scratch(n)}, NAN);
          REQUIRE(norm_forward_cuda(n, matrix_of(x), matrix_of(y), 1e-5f, nullptr) == cudaSuccess);
          REQUIRE(norm_backward_cuda(n, matrix_of(x), matrix_of(dy), matrix_of(dx), true,
                                     partials.mutable_data_ptr<float>(),
                                     dw.mutable_data_ptr<float>(), db.mutable_data_ptr<float>(),
                                     nullptr) == cudaSuccess);

          // Compute the expected values with LibTorch's autograd in float64.
          const at::Tensor xd = x.to(at::kDouble).requires_grad_(),
                           wd = w.to(at::kDouble).requires_grad_(),
                           bd = b.to(at::kDouble).requires_grad_();
          const at::Tensor centered = rms ? xd : xd - xd.mean(-1, true);
          at::Tensor wanted = centered * ((centered * centered).mean(-1, true) + 1e-5).rsqrt() * wd;
          if (!rms) wanted = wanted + bd;
          wanted.backward(dy.to(at::kDouble));
          CHECK(distance(y, wanted.detach()) < tolerance(other));
          CHECK(distance(dx, xd.grad() + before.to(at::kDouble)) < 2 * tolerance(in));
          CHECK(distance(dw, wd.grad()) < 1e-5);
          if (!rms) CHECK(distance(db, bd.grad()) < 1e-5);
          CHECK(distance(dw * 1.001, wd.grad()) > 1e-5);  // an error of 0.1% is detected

          // This call computes no gradients of weight and bias, and overwrites dx instead of adding
          // to it.
          const at::Tensor fresh = torch::full({rows, c}, NAN, in);
          REQUIRE(norm_backward_cuda(n, matrix_of(x), matrix_of(dy), matrix_of(fresh), false,
                                     nullptr, nullptr, nullptr, nullptr) == cudaSuccess);
          CHECK(distance(fresh, xd.grad()) < 2 * tolerance(in));
        }
      }
    }
  }

  // Numbers whose squares overflow give NaN, not zeros.
  const at::Tensor far = torch::full({1, 8}, 3e30f), y = torch::zeros({1, 8}),
                   rstd = torch::zeros({1});
  REQUIRE(norm_forward_cuda({.rows = 1, .columns = 8, .rstd = rstd.mutable_data_ptr<float>()},
                            matrix_of(far), matrix_of(y), 1e-5f, nullptr) == cudaSuccess);
  CHECK(y.isnan().all().item<bool>());

  const at::Tensor x = torch::ones({1, 6});
  CHECK(norm_forward_cuda({.rows = 1, .columns = 6}, matrix_of(x), matrix_of(x), 0, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("sums of columns on a GPU agree with their formula", "[cuda_rows]") {
  torch::manual_seed(13);
  for (const auto dtype : narrow_dtypes) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 8}, {1, 8}, {127, 128}, {128, 136}, {129, 264}, {700, 40}}) {
      INFO(at::toString(dtype) << " " << rows << " x " << columns);
      const ThreadOrder setting(orders[rows % 3]);
      const at::Tensor x = torch::randn({rows, columns}).to(dtype),
                       partials = torch::full({column_sum_scratch(rows, columns)}, NAN),
                       sums = torch::full({columns + 1}, 7.0f);
      const Matrix matrix{.data = x.const_data_ptr(), .stride = columns, .type = element_of(dtype)};
      CHECK(column_sums_cuda(matrix, rows, columns, partials.mutable_data_ptr<float>(),
                             sums.mutable_data_ptr<float>(), nullptr) == cudaSuccess);
      const at::Tensor wanted = x.to(at::kDouble).sum(0), ours = sums.narrow(0, 0, columns);
      CHECK((ours - wanted).abs().max().item<double>() < 1e-4);
      CHECK(sums[columns].item<float>() == 7);
      if (rows > 1)  // a wrong sum is detected
        CHECK((ours - x[0].to(at::kDouble) - wanted).abs().max().item<double>() > 1e-4);

      // One kernel computes the gradient of GELU and the sums of its columns. It must agree with
      // the two separate kernels.
      const at::Tensor dy = torch::randn({rows, columns}).to(dtype), dx = torch::full_like(dy, NAN),
                       alone = torch::full_like(dy, NAN), sums_of_dx = torch::full({columns}, 7.0f);
      CHECK(gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), alone.mutable_data_ptr(),
                               element_of(dtype), x.numel(), nullptr) == cudaSuccess);
      const Matrix gradient{
          .data = alone.const_data_ptr(), .stride = columns, .type = element_of(dtype)};
      CHECK(column_sums_cuda(gradient, rows, columns, partials.mutable_data_ptr<float>(),
                             sums.mutable_data_ptr<float>(), nullptr) == cudaSuccess);
      CHECK(gelu_backward_sums_cuda(x.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(),
                                    element_of(dtype), rows, columns,
                                    partials.mutable_data_ptr<float>(),
                                    sums_of_dx.mutable_data_ptr<float>(), nullptr) == cudaSuccess);
      CHECK(dx.equal(alone));
      CHECK(sums_of_dx.equal(ours));
    }
  }
  CHECK(column_sums_cuda({.data = nullptr, .stride = 12, .type = Element::f32}, 1, 12, nullptr,
                         nullptr, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("cross-entropy on a GPU agrees with its formula", "[cuda_rows]") {
  torch::manual_seed(9);
  for (const auto& [classes, stride] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 32}, {65, 96}, {5000, 5024}}) {
    for (const auto dtype : narrow_dtypes) {
      INFO(classes << " " << dtype_name(dtype));
      const ThreadOrder setting(orders[classes % 3]);
      constexpr int64_t rows = 9;
      at::Tensor logits = torch::full({rows, stride}, NAN).to(dtype);
      logits.narrow(1, 0, classes).copy_(torch::randn({rows, classes}) * 3);
      logits[2]
          .narrow(0, 0, classes)
          .add_(classes > 1 ? 200 : 0);  // their exponentials overflow in float32
      if (classes > 1) logits[3][0] = -INFINITY;
      logits[4].fill_(NAN);  // ignored
      const at::Tensor targets =
          torch::randint(1, std::max<int64_t>(classes, 2), {rows}, at::kLong) % classes;
      targets[4] = -100;

      const at::Tensor x = logits.narrow(1, 0, classes).to(at::kDouble);
      const at::Tensor log_p = x.log_softmax(1);
      const at::Tensor wanted = -log_p.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
      at::Tensor d = 0.5 * log_p.exp();
      d.scatter_add_(1, targets.clamp_min(0).unsqueeze(1),
                     torch::full({rows, 1}, -0.5, at::kDouble));
      wanted[4] = 0;
      d[4].zero_();

      const at::Tensor losses = torch::full({rows}, NAN), same = logits.clone();
      const auto run = [&](bool gradient) {
        return cross_entropy_rows_cuda(matrix_of(logits), rows, classes,
                                       targets.const_data_ptr<int64_t>(), -100, 0.5f, gradient,
                                       losses.mutable_data_ptr<float>(), nullptr);
      };

      REQUIRE(run(false) == cudaSuccess);
      CHECK(distance(losses, wanted) < 1e-5);
      CHECK(equal_bits(logits, same));
      REQUIRE(run(true) == cudaSuccess);
      CHECK(distance(losses, wanted) < 1e-5);
      CHECK(distance(logits.narrow(1, 0, classes), d) < tolerance(dtype));
      CHECK(logits.narrow(1, classes, stride - classes).eq(0).all().item<bool>());
      if (classes > 1)  // an error of 5% is detected
        CHECK(distance(logits.narrow(1, 0, classes) * 1.05, d) > tolerance(dtype));
    }
  }

  // Test a target that is not a class, and logits that are not finite.
  const at::Tensor logits = torch::zeros({3, 32}), losses = torch::zeros({3}),
                   targets = torch::tensor({32, 1, 1});
  logits[1][0] = NAN;
  logits[2][0] = INFINITY;
  REQUIRE(cross_entropy_rows_cuda(matrix_of(logits), 3, 32, targets.const_data_ptr<int64_t>(), -100,
                                  1, true, losses.mutable_data_ptr<float>(),
                                  nullptr) == cudaSuccess);
  CHECK(losses.isnan().all().item<bool>());
  CHECK(logits.isnan().any(1).all().item<bool>());
}

}  // namespace
