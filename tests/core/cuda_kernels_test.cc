// Compares the elementwise functions of core/kernels/*.cu with the CPU's functions and with their
// formulas. No GPU is needed, since tests/support/cuda/ runs CUDA kernels on the CPU.
#include "tests/core/cuda_kernels.h"
#include "autograd/ops/kernel.h"
#include "core/dtype.h"
#include "core/kernels/activation.cuh"
#include "core/kernels/dropout.cuh"
#include "core/kernels/e4m3.cuh"
#include "core/kernels/interleave.cuh"
#include "core/kernels/linear.cuh"
#include "core/kernels/rotary.cuh"
#include "core/kernels/swiglu.cuh"
#include "tests/support/catch.h"

namespace {

using namespace lathe;
using namespace lathe::test;

TEST_CASE("dropout on a GPU is bitwise equal to dropout on the CPU", "[cuda_kernels]") {
  torch::manual_seed(1);
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (const auto dtype : dtypes) {
      for (const int64_t n : {0, 1, 3, 4, 5, 1022, 1024, 2051}) {
        for (const uint64_t first : {0ul, 1ul, 6ul, 7ul, (1ul << 34) + 5}) {
          INFO(dtype_name(dtype) << " " << n << " from " << first);

          // The tensors have additional elements on either side, which must not change. The kernel
          // reads four elements at a time if their address and `first` allow it.
          const int64_t before = n % 2 == 0 ? 4 : 1;
          at::Tensor x = torch::randn({n + 8}).to(dtype), wanted = torch::full({n + 8}, 7, dtype);
          const double special[] = {INFINITY, NAN, -0.0, 1e-7, 65504, -3e38};
          for (int64_t i = 0; i < std::min<int64_t>(n, 6); ++i) x[i + before] = special[i];

          // Three of four elements are dropped. Narrow types can't represent the scale.
          const DropoutMask mask{.key = make_key(3, 4),
                                 .step = 11,
                                 .first = first,
                                 .threshold = uint32_t{3} << 30,
                                 .scale = 10.0f / 3};
          const auto at = [before](const at::Tensor& t) {
            return static_cast<char*>(t.mutable_data_ptr()) + before * t.element_size();
          };

          dropout_cpu(at(x), at(wanted), 0, n, element_of(dtype), mask);
          for (const int64_t most :
               {INT32_MAX, 2}) {  // with 2 blocks, each thread handles several parts of the mask
            stand_in::max_blocks = most;
            const at::Tensor ours = torch::full({n + 8}, 7, dtype);
            CHECK(dropout_cuda(at(x), at(ours), n, element_of(dtype), mask, nullptr) ==
                  cudaSuccess);
            CHECK(equal_bits(ours, wanted));
          }
        }
      }
    }
  }
}

TEST_CASE("rows of three matrices are interleaved on a GPU", "[cuda_kernels]") {
  torch::manual_seed(12);
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 4}, {0, 4}, {7, 12}, {300, 68}}) {
    for (const int64_t most : {INT32_MAX, 2}) {
      const ThreadOrder setting(orders[rows % 3]);
      stand_in::max_blocks = most;
      const at::Tensor in[3] = {torch::randn({rows, width}), torch::randn({rows, width}),
                                torch::randn({rows, width})};
      const at::Tensor out = torch::full({3 * rows * width + 4}, 7.0f);
      const ThreeMatrices all{
          {in[0].const_data_ptr(), in[1].const_data_ptr(), in[2].const_data_ptr()}};
      CHECK(interleave_cuda(all, out.mutable_data_ptr(), rows, 4 * width, nullptr) == cudaSuccess);
      const at::Tensor wanted = torch::cat({in[0], in[1], in[2]}, 1);
      CHECK(out.narrow(0, 0, 3 * rows * width).view({rows, 3 * width}).equal(wanted));
      CHECK(out.narrow(0, 3 * rows * width, 4).eq(7).all().item<bool>());
    }
  }

  const at::Tensor t = torch::zeros({12});
  const float* const x = t.const_data_ptr<float>();
  CHECK(interleave_cuda({{x, x + 1, x}}, t.mutable_data_ptr(), 1, 16, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(interleave_cuda({{x, x, x}}, t.mutable_data_ptr(), 1, 8, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("the derivative of GELU on a GPU agrees with ATen in float64", "[cuda_kernels]") {
  torch::manual_seed(10);
  for (const auto dtype : narrow_dtypes) {
    for (const int64_t n : {1, 7, 16, 2053}) {
      const ThreadOrder setting(orders[n % 3]);
      at::Tensor x = (torch::randn({n}) * 4).to(dtype);
      const at::Tensor dy = torch::randn({n}).to(dtype), ours = torch::full({n}, NAN, dtype);
      if (n > 16) {
        x[3] = 6e4;
        x[4] = -6e4;
        x[5] = 0;
        x[n - 1] = -2;
      }

      CHECK(gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), ours.mutable_data_ptr(),
                               element_of(dtype), n, nullptr) == cudaSuccess);
      const at::Tensor wanted = at::gelu_backward(dy.to(at::kDouble), x.to(at::kDouble), "tanh");
      CHECK(distance(ours, wanted) < tolerance(dtype));
      if (n > 16)  // an error of 2% is detected
        CHECK(distance(ours * 1.02, wanted) > tolerance(dtype));

      x[n - 1] = NAN;
      gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), ours.mutable_data_ptr(),
                         element_of(dtype), n, nullptr);
      CHECK(ours[n - 1].isnan().item<bool>());
    }
  }
}

TEST_CASE("rotations on a GPU agree with the CPU", "[cuda_kernels]") {
  torch::manual_seed(15);
  for (const auto dtype : narrow_dtypes) {
    for (const auto& [rows, heads, width] :
         std::vector<std::array<int64_t, 3>>{{0, 1, 16}, {1, 1, 16}, {12, 3, 32}, {70, 2, 64}}) {
      const int64_t table_rows = rows == 12 ? 4 : std::max<int64_t>(rows, 1);
      const ThreadOrder setting(orders[rows % 3]);

      const at::Tensor x = torch::randn({rows, heads * width}).to(dtype),
                       table = torch::randn({table_rows, width});
      const at::Tensor ours = torch::full_like(x, NAN), wanted = torch::zeros_like(x);

      for (const bool back : {false, true}) {
        INFO(dtype_name(dtype) << " " << rows << " x " << heads << " x " << width << " " << back);
        CHECK(rotate_heads_cuda(x.const_data_ptr(), ours.mutable_data_ptr(), element_of(dtype),
                                rows, heads, width, table.const_data_ptr<float>(), table_rows, back,
                                nullptr) == cudaSuccess);
        rotate_heads(x.const_data_ptr(), wanted.mutable_data_ptr(), element_of(dtype), rows, heads,
                     width, table.const_data_ptr<float>(), table_rows, back);
        if (rows == 0) continue;
        CHECK(distance(ours, wanted) < tolerance(dtype));
        CHECK(distance(x, wanted) > tolerance(dtype));  // a missing rotation is detected
      }
    }
  }

  CHECK(rotate_heads_cuda(nullptr, nullptr, Element::bf16, 1, 1, 8, nullptr, 1, false, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("SwiGLU on a GPU agrees with its formula", "[cuda_kernels]") {
  torch::manual_seed(16);
  for (const auto dtype : narrow_dtypes) {
    for (const auto& [rows, h, between] :
         std::vector<std::array<int64_t, 3>>{{1, 8, 8}, {3, 24, 48}, {40, 72, 144}}) {
      INFO(dtype_name(dtype) << " " << rows << " x " << h);
      const ThreadOrder setting(orders[rows % 3]);
      const at::Tensor x = (torch::randn({rows, between + h}) * 3).to(dtype),
                       dy = torch::randn({rows, h}).to(dtype), dx = torch::full_like(x, 7),
                       y = torch::full_like(dy, NAN);
      x[0][0] = 300;
      x[0][1] = -300;
      x[0][2] = -90;
      x[0][3] = 0;
      // Rows of a and b are `between` elements apart. b starts h elements after a.
      const int64_t far = h;
      const auto at = [&](const at::Tensor& t, int64_t i) {
        return static_cast<char*>(t.mutable_data_ptr()) + i * t.element_size();
      };
      CHECK(swiglu_forward_cuda(at(x, 0), at(x, far), y.mutable_data_ptr(), element_of(dtype), rows,
                                h, between, nullptr) == cudaSuccess);
      const at::Tensor
          a = x.as_strided({rows, h}, {between, 1}, 0).to(at::kDouble).requires_grad_(),
          b = x.as_strided({rows, h}, {between, 1}, far).to(at::kDouble).requires_grad_();
      const at::Tensor wanted = at::silu(a) * b;
      CHECK(distance(y, wanted.detach()) < tolerance(dtype));
      wanted.backward(dy.to(at::kDouble));

      const at::Tensor da = torch::full({rows, between}, 7, dtype), db = da.clone();
      CHECK(swiglu_backward_cuda(at(x, 0), at(x, far), dy.const_data_ptr(), at(da, 0), at(db, 0),
                                 element_of(dtype), rows, h, between, nullptr) == cudaSuccess);
      CHECK(distance(da.narrow(1, 0, h), a.grad()) < tolerance(dtype));
      CHECK(distance(db.narrow(1, 0, h), b.grad()) < tolerance(dtype));
      CHECK(da.narrow(1, h, between - h).eq(7).all().item<bool>());
      // An error of 2% is detected.
      CHECK(distance(da.narrow(1, 0, h) * 1.02, a.grad()) > tolerance(dtype));
    }
  }
  // Far below zero the result is zero, even if it is multiplied by large factors.
  const at::Tensor far = torch::tensor({-1e3f, -2e30f, -88.0f, -100.0f}),
                   large = torch::full({4}, 1e30f), product = torch::full({4}, NAN),
                   dfar = torch::full({4}, NAN), dlarge = torch::full({4}, NAN);
  CHECK(swiglu_forward_cuda(far.const_data_ptr(), large.const_data_ptr(),
                            product.mutable_data_ptr(), Element::f32, 1, 4, 4,
                            nullptr) == cudaSuccess);
  CHECK(swiglu_backward_cuda(far.const_data_ptr(), large.const_data_ptr(), large.const_data_ptr(),
                             dfar.mutable_data_ptr(), dlarge.mutable_data_ptr(), Element::f32, 1, 4,
                             4, nullptr) == cudaSuccess);
  for (const at::Tensor& t : {product, dlarge}) CHECK(t.eq(0).all().item<bool>());
  CHECK(dfar.eq(0).all().item<bool>());

  // Gradients for numbers that are not finite are NaN.
  const at::Tensor a = torch::tensor({NAN, INFINITY, -INFINITY, 1.0f}), b = torch::ones({4}),
                   da = torch::zeros({4}), db = torch::zeros({4});
  CHECK(swiglu_backward_cuda(a.const_data_ptr(), b.const_data_ptr(), b.const_data_ptr(),
                             da.mutable_data_ptr(), db.mutable_data_ptr(), Element::f32, 1, 4, 4,
                             nullptr) == cudaSuccess);
  CHECK(da.narrow(0, 0, 3).isnan().all().item<bool>());
  CHECK(swiglu_forward_cuda(a.const_data_ptr(), b.const_data_ptr(), db.mutable_data_ptr(),
                            Element::f32, 1, 4, 4, nullptr) == cudaSuccess);
  CHECK(db[2].isnan().item<bool>());
  CHECK(std::isfinite(da[3].item<float>()));
  CHECK(swiglu_forward_cuda(nullptr, nullptr, nullptr, Element::bf16, 1, 4, 4, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("adding two dtypes and scaling on a GPU are bitwise equal to ATen's ops",
          "[cuda_kernels]") {
  torch::manual_seed(14);
  for (const auto left : narrow_dtypes) {
    for (const auto right : narrow_dtypes) {
      for (const int64_t n : {0, 4, 1028}) {
        const ThreadOrder setting(orders[n % 3]);
        const at::Tensor a = torch::randn({n}).to(left), b = torch::randn({n}).to(right),
                         out = torch::full({n + 1}, 7, left);
        CHECK(add_cuda(a.const_data_ptr(), element_of(left), b.const_data_ptr(), element_of(right),
                       out.mutable_data_ptr(), n, nullptr) == cudaSuccess);
        CHECK(out.narrow(0, 0, n).equal((a.to(at::kFloat) + b.to(at::kFloat)).to(left)));
        CHECK(out[n].item<float>() == 7);

        const float factor = -1.7f;
        const at::Tensor product = torch::full({n + 1}, 7, right);
        CHECK(scale_cuda(a.const_data_ptr(), element_of(left), &factor, product.mutable_data_ptr(),
                         element_of(right), n, nullptr) == cudaSuccess);
        CHECK(product.narrow(0, 0, n).equal((a.to(at::kFloat) * factor).to(right)));
        CHECK(product[n].item<float>() == 7);
      }
    }
  }
  CHECK(add_cuda(nullptr, Element::f32, nullptr, Element::f32, nullptr, 3, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(scale_cuda(nullptr, Element::f32, nullptr, nullptr, Element::f32, 3, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("packing to e4m3 on a GPU is bitwise equal to packing on the CPU", "[cuda_kernels]") {
  torch::manual_seed(12);
  for (const auto dtype : narrow_dtypes) {
    for (const int64_t n : {1, 64, 127, 128, 300}) {
      const ThreadOrder setting(orders[n % 3]);
      constexpr int64_t rows = 40;
      at::Tensor x = torch::randn({rows, n}) * torch::logspace(-35, 30, rows).view({rows, 1});
      x[3][n - 1] = NAN;
      x[4][0] = INFINITY;
      x[5] = 0;
      x[6] = -448;
      x = x.to(dtype);
      struct Packed {
        at::Tensor codes, factors, values;
      };
      const auto empty = [&] {
        return Packed{torch::full({rows, n}, 77, at::kByte), torch::full({rows}, 5, at::kFloat),
                      torch::full({rows, n}, 3, dtype)};
      };
      Packed ours = empty(), wanted = empty();
      pack_e4m3(x.const_data_ptr(), element_of(dtype), wanted.codes.mutable_data_ptr<uint8_t>(),
                wanted.factors.mutable_data_ptr<float>(), rows, n);
      CHECK(pack_e4m3_cuda(
                x.const_data_ptr(), element_of(dtype), ours.codes.mutable_data_ptr<uint8_t>(),
                ours.factors.mutable_data_ptr<float>(), rows, n, nullptr) == cudaSuccess);
      CHECK(at::equal(ours.codes, wanted.codes));
      CHECK(at::equal(ours.factors.nan_to_num(-1), wanted.factors.nan_to_num(-1)));
      CHECK(ours.factors.isnan().sum().item<int64_t>() >= 2);

      unpack_e4m3(wanted.codes.const_data_ptr<uint8_t>(), wanted.factors.const_data_ptr<float>(),
                  wanted.values.mutable_data_ptr(), element_of(dtype), rows, n);
      CHECK(unpack_e4m3_cuda(ours.codes.const_data_ptr<uint8_t>(),
                             ours.factors.const_data_ptr<float>(), ours.values.mutable_data_ptr(),
                             element_of(dtype), rows, n, nullptr) == cudaSuccess);
      CHECK(at::equal(ours.values.nan_to_num(-1), wanted.values.nan_to_num(-1)));
    }
  }
}

}  // namespace
