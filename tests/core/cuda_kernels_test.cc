// Compares the functions of core/kernels/*.cu with the CPU's. No GPU is needed: tests/support/cuda/
// stands in for CUDA. The first tests check this stand-in.
#include <hwy/targets.h>

#include <bit>
#include <cstring>
#include <random>

#include "autograd/ops/kernel.h"
#include "core/dtype.h"
#include "core/kernels/activation.cuh"
#include "core/kernels/dropout.cuh"
#include "core/kernels/e4m3.cuh"
#include "core/kernels/interleave.cuh"
#include "core/kernels/launch.cuh"
#include "core/kernels/linear.cuh"
#include "core/kernels/loss.cuh"
#include "core/kernels/norm.cuh"
#include "core/kernels/rotary.cuh"
#include "core/kernels/rules.h"
#include "core/kernels/swiglu.cuh"
#include "core/kernels/update.cuh"
#include "tests/support/catch.h"
#include "tests/support/cuda/cuda_bf16.h"
#include "tests/support/cuda/cuda_fp16.h"

namespace {

using namespace lathe;
using stand_in::Order;

constexpr Order orders[] = {Order::forward, Order::backward, Order::shuffled};
constexpr at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// While alive, the stand-in runs threads in this order, and the CPU's kernels use the compiler's
/// baseline instructions. On x86-64 these have no fused multiply-add, so both sides, which share
/// the source of their formulas, round in the same way. On other CPUs, a bit may differ.
struct ThreadOrder {
  int64_t targets = hwy::SupportedTargets();

  explicit ThreadOrder(Order order) {
    stand_in::order = order;
    hwy::GetChosenTarget().Update(HWY_STATIC_TARGET);
  }
  ~ThreadOrder() {
    stand_in::order = Order::forward;
    stand_in::max_blocks = INT32_MAX;
    hwy::GetChosenTarget().Update(targets);
  }
};

/// Returns whether two tensors have the same bits. Two NaNs count as equal, since their sign and
/// payload depend on the device.
bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.element_size() == 8   ? at::kLong
                    : a.element_size() == 4 ? at::kInt
                                            : at::kShort;
  return (a.view(bits).eq(b.view(bits)) | (a.isnan() & b.isnan())).all().item<bool>();
}

__global__ void sum_kernel(const int* x, int* sum, bool first, bool inner) {
  __shared__ int sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  if (first) __syncthreads();
  for (unsigned half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    if (inner) __syncthreads();
  }
  if (threadIdx.x == 0) *sum = sums[0];
}

TEST_CASE("the stand-in gives a wrong sum where a barrier is missing", "[cuda_kernels]") {
  int x[64], wanted = 0;
  for (int i = 0; i < 64; ++i) wanted += x[i] = i * i + 1;
  const auto right = [&](bool first, bool inner) {
    int n = 0;
    for (const Order order : orders) {
      const ThreadOrder setting(order);
      int sum = 0;
      launch(sum_kernel, 1, 64, nullptr, static_cast<const int*>(x), &sum, first, inner);
      n += sum == wanted;
    }
    return n;
  };
  CHECK(right(true, true) == 3);
  CHECK(right(false, true) < 3);
  CHECK(right(true, false) < 3);
}

__global__ void some_wait_kernel(unsigned waiting) {
  if (threadIdx.x < waiting) __syncthreads();
}

__global__ void wait_apart_kernel(unsigned here) {
  if (threadIdx.x < here) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_CASE("the stand-in reports a barrier that some threads don't reach", "[cuda_kernels]") {
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (const unsigned n : {0u, 10u}) {  // the controls
      launch(some_wait_kernel, 3, 10, nullptr, n);
      launch(wait_apart_kernel, 3, 10, nullptr, n);
    }
    CHECK_THAT(error_of([] { launch(some_wait_kernel, 3, 10, nullptr, 9u); }),
               ContainsSubstring("9 of 10 threads"));
    CHECK_THAT(error_of([] { launch(wait_apart_kernel, 3, 10, nullptr, 4u); }),
               ContainsSubstring(" of 10 threads"));
  }
}

__global__ void leave_kernel(int* found) {
  __shared__ int left;
  found[blockIdx.x] = left;
  left = 5;
}

TEST_CASE(
    "the stand-in overwrites shared memory before each block, and refuses a grid that a GPU can't "
    "have",
    "[cuda_kernels]") {
  int found[3] = {};
  launch(leave_kernel, 3, 1, nullptr, &found[0]);
  for (const int f : found) CHECK(f == -1);
  for (const auto& [blocks, threads] :
       std::vector<std::pair<int64_t, int>>{{0, 1}, {1, 0}, {1, 1025}, {1l << 31, 1}}) {
    CHECK(cudaGetLastError() == cudaSuccess);
    launch(leave_kernel, blocks, threads, nullptr, &found[0]);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  }
}

template <class Ours, class Theirs>
int conversions_apart() {
  int apart = 0;
  const auto check = [&](float x) {
    const auto ours = Ours(x).bits;
    apart += x == x ? ours != Theirs(x).x : !std::isnan(float(Ours(x)));
  };
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const float x = std::bit_cast<Ours>(b), y = std::bit_cast<Theirs>(b);
    apart += std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y) &&
             !(std::isnan(x) && std::isnan(y));
    const float next = std::bit_cast<Theirs>(static_cast<uint16_t>(b + 1));
    const float middle = x / 2 + next / 2;  // a tie, where it is one
    for (const float z :
         {x, middle, std::nextafter(middle, x), std::nextafter(middle, next), x / 3})
      check(z);
  }
  return apart;
}

TEST_CASE("the stand-in's conversions are c10's", "[cuda_kernels]") {
  CHECK(conversions_apart<__half, c10::Half>() == 0);
  CHECK(conversions_apart<__nv_bfloat16, c10::BFloat16>() == 0);
}

TEST_CASE("dropout on a GPU is the CPU's", "[cuda_kernels]") {
  torch::manual_seed(1);
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (const auto dtype : dtypes) {
      for (const int64_t n : {0, 1, 3, 4, 5, 1022, 1024, 2051}) {
        for (const uint64_t first : {0ul, 1ul, 6ul, 7ul, (1ul << 34) + 5}) {
          INFO(dtype_name(dtype) << " " << n << " from " << first);
          // The tensors have more elements on either side, which must not change. The kernel reads
          // four elements at a time if their address and `first` allow it.
          const int64_t before = n % 2 == 0 ? 4 : 1;
          at::Tensor x = torch::randn({n + 8}).to(dtype), wanted = torch::full({n + 8}, 7, dtype);
          const double special[] = {INFINITY, NAN, -0.0, 1e-7, 65504, -3e38};
          for (int64_t i = 0; i < std::min<int64_t>(n, 6); ++i) x[i + before] = special[i];
          // Three of four elements are dropped. Narrow types can't represent the scale.
          const DropoutMask mask{make_key(3, 4), 11, first, uint32_t{3} << 30, 10.0f / 3};
          const auto at = [before](const at::Tensor& t) {
            return static_cast<char*>(t.mutable_data_ptr()) + before * t.element_size();
          };
          dropout_cpu(at(x), at(wanted), 0, n, element_of(dtype), mask);
          for (const int64_t most :
               {INT32_MAX, 2}) {  // with 2 blocks, each thread handles several blocks of the mask
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

TEST_CASE("sums of squares of many gradients on a GPU are the CPU's", "[cuda_kernels]") {
  torch::manual_seed(2);
  const int64_t sizes[] = {1, 0, 255, 256, 300, 7}, long_sizes[] = {32768, 32769, 100000, 0};
  std::vector<at::Tensor> grads;
  for (int64_t i = 0; i < 330; ++i) {  // 128 to a launch, without the empty ones: three launches
    const int64_t n = i % 37 == 36 ? long_sizes[i / 37 % 4] : sizes[i % 6];
    // Multiples of 1/8 below 16 have exact squares and sums, so the result does not depend on the
    // order of the sum, which differs between devices.
    grads.push_back((torch::randint(-127, 128, {n}, at::kFloat) / 8).to(dtypes[i / 6 % 4]));
  }
  grads[0][0] = NAN;
  grads[5 + 36][6] = INFINITY;
  grads[36 + 37 * 2].view(-1)[99999] = -INFINITY;
  std::vector<GradArgs> args;
  std::vector<double> wanted;
  for (const auto& g : grads) {
    const Element type = element_of(g.scalar_type());
    args.push_back({g.const_data_ptr(), type, g.numel()});
    for (int64_t at = 0; at < g.numel(); at += grad_sum_chunk) {
      wanted.push_back(
          grad_sum_cpu(g.const_data_ptr(), type, at, std::min(at + grad_sum_chunk, g.numel())));
    }
  }
  CHECK(std::count_if(wanted.begin(), wanted.end(), [](double x) { return !std::isfinite(x); }) ==
        3);
  wanted.push_back(-1);  // one more, which stays as it is
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    std::vector<double> ours(wanted.size(), -1);
    CHECK(grad_sum_cuda(args.data(), static_cast<int64_t>(args.size()), ours.data(), nullptr) ==
          cudaSuccess);
    CHECK(equal_bits(torch::tensor(ours, at::kDouble), torch::tensor(wanted, at::kDouble)));
  }
  const GradArgs none[2];
  CHECK(grad_sum_cuda(none, 0, nullptr, nullptr) == cudaSuccess);
  CHECK(grad_sum_cuda(none, 2, nullptr, nullptr) == cudaSuccess);
}

constexpr at::ScalarType narrow_dtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
/// Returns the largest allowed error of a result: for bfloat16 and float16, one unit in the last
/// place of 1; for float32, an allowance for sums.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
}

TEST_CASE("norms on a GPU are those of their formula", "[cuda_kernels]") {
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
          const at::Tensor partials = torch::full({norm_partials(n)}, NAN);
          REQUIRE(norm_forward_cuda(n, matrix_of(x), matrix_of(y), 1e-5f, nullptr) == cudaSuccess);
          REQUIRE(norm_backward_cuda(n, matrix_of(x), matrix_of(dy), matrix_of(dx), true,
                                     partials.mutable_data_ptr<float>(),
                                     dw.mutable_data_ptr<float>(), db.mutable_data_ptr<float>(),
                                     nullptr) == cudaSuccess);
          // By LibTorch's autograd, in float64.
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
          CHECK(distance(dw * 1.001, wd.grad()) > 1e-5);  // the control
          // Without the gradients of weight and bias, and with an output that must not be read.
          const at::Tensor fresh = torch::full({rows, c}, NAN, in);
          REQUIRE(norm_backward_cuda(n, matrix_of(x), matrix_of(dy), matrix_of(fresh), false,
                                     nullptr, nullptr, nullptr, nullptr) == cudaSuccess);
          CHECK(distance(fresh, xd.grad()) < 2 * tolerance(in));
        }
      }
    }
  }
  // Numbers whose squares overflow make NaN, not zeros.
  const at::Tensor far = torch::full({1, 8}, 3e30f), y = torch::zeros({1, 8}),
                   rstd = torch::zeros({1});
  REQUIRE(norm_forward_cuda({.rows = 1, .columns = 8, .rstd = rstd.mutable_data_ptr<float>()},
                            matrix_of(far), matrix_of(y), 1e-5f, nullptr) == cudaSuccess);
  CHECK(y.isnan().all().item<bool>());
  const at::Tensor x = torch::ones({1, 6});
  CHECK(norm_forward_cuda({.rows = 1, .columns = 6}, matrix_of(x), matrix_of(x), 0, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("the derivative of GELU on a GPU is the CPU's", "[cuda_kernels]") {
  torch::manual_seed(10);
  for (const auto dtype : narrow_dtypes) {
    for (const int64_t n : {1, 7, 16, 2053}) {
      const ThreadOrder setting(orders[n % 3]);
      at::Tensor x = (torch::randn({n}) * 4).to(dtype);
      const at::Tensor dy = torch::randn({n}).to(dtype), ours = torch::full({n}, NAN, dtype);
      if (n > 16) x[3] = 6e4, x[4] = -6e4, x[5] = 0, x[n - 1] = -2;
      CHECK(gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), ours.mutable_data_ptr(),
                               element_of(dtype), n, nullptr) == cudaSuccess);
      const at::Tensor wanted = at::gelu_backward(dy.to(at::kDouble), x.to(at::kDouble), "tanh");
      CHECK(distance(ours, wanted) < tolerance(dtype));
      if (n > 16) CHECK(distance(ours * 1.02, wanted) > tolerance(dtype));  // the control
      x[n - 1] = NAN;
      gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), ours.mutable_data_ptr(),
                         element_of(dtype), n, nullptr);
      CHECK(ours[n - 1].isnan().item<bool>());
    }
  }
}

TEST_CASE("sums of columns on a GPU are those of their formula", "[cuda_kernels]") {
  torch::manual_seed(13);
  for (const auto dtype : narrow_dtypes) {
    for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 8}, {1, 8}, {127, 128}, {128, 136}, {129, 264}, {700, 40}}) {
      INFO(at::toString(dtype) << " " << rows << " x " << columns);
      const ThreadOrder setting(orders[rows % 3]);
      const at::Tensor x = torch::randn({rows, columns}).to(dtype),
                       partials = torch::full({column_partials(rows, columns)}, NAN),
                       sums = torch::full({columns + 1}, 7.0f);
      CHECK(column_sums_cuda({x.const_data_ptr(), columns, element_of(dtype)}, rows, columns,
                             partials.mutable_data_ptr<float>(), sums.mutable_data_ptr<float>(),
                             nullptr) == cudaSuccess);
      const at::Tensor wanted = x.to(at::kDouble).sum(0), ours = sums.narrow(0, 0, columns);
      CHECK((ours - wanted).abs().max().item<double>() < 1e-4);
      CHECK(sums[columns].item<float>() == 7);
      if (rows > 1)  // the control
        CHECK((ours - x[0].to(at::kDouble) - wanted).abs().max().item<double>() > 1e-4);

      // Those of GELU's gradient, beside its own kernels for the gradient and for the sums.
      const at::Tensor dy = torch::randn({rows, columns}).to(dtype), dx = torch::full_like(dy, NAN),
                       alone = torch::full_like(dy, NAN), sums_of_dx = torch::full({columns}, 7.0f);
      CHECK(gelu_backward_cuda(x.const_data_ptr(), dy.const_data_ptr(), alone.mutable_data_ptr(),
                               element_of(dtype), x.numel(), nullptr) == cudaSuccess);
      CHECK(column_sums_cuda({alone.const_data_ptr(), columns, element_of(dtype)}, rows, columns,
                             partials.mutable_data_ptr<float>(), sums.mutable_data_ptr<float>(),
                             nullptr) == cudaSuccess);
      CHECK(gelu_backward_sums_cuda(x.const_data_ptr(), dy.const_data_ptr(), dx.mutable_data_ptr(),
                                    element_of(dtype), rows, columns,
                                    partials.mutable_data_ptr<float>(),
                                    sums_of_dx.mutable_data_ptr<float>(), nullptr) == cudaSuccess);
      CHECK(dx.equal(alone));
      CHECK(sums_of_dx.equal(ours));
    }
  }
  CHECK(column_sums_cuda({nullptr, 12, Element::f32}, 1, 12, nullptr, nullptr, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("rotations on a GPU are the CPU's", "[cuda_kernels]") {
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
        CHECK(distance(x, wanted) > tolerance(dtype));  // the control
      }
    }
  }
  CHECK(rotate_heads_cuda(nullptr, nullptr, Element::bf16, 1, 1, 8, nullptr, 1, false, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("SwiGLU on a GPU is that of its formula", "[cuda_kernels]") {
  torch::manual_seed(16);
  for (const auto dtype : narrow_dtypes) {
    for (const auto& [rows, h, between] :
         std::vector<std::array<int64_t, 3>>{{1, 8, 8}, {3, 24, 48}, {40, 72, 144}}) {
      INFO(dtype_name(dtype) << " " << rows << " x " << h);
      const ThreadOrder setting(orders[rows % 3]);
      const at::Tensor x = (torch::randn({rows, between + h}) * 3).to(dtype),
                       dy = torch::randn({rows, h}).to(dtype), dx = torch::full_like(x, 7),
                       y = torch::full_like(dy, NAN);
      x[0][0] = 300, x[0][1] = -300, x[0][2] = -90, x[0][3] = 0;
      // a begins each row of `between` elements, and b follows h later, in the last row beyond it.
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
      CHECK(distance(da.narrow(1, 0, h) * 1.02, a.grad()) > tolerance(dtype));  // the control
    }
  }
  // Far tails are zero whatever they are multiplied by.
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

  // Numbers that are not finite stay so.
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

TEST_CASE("a sum of two types and a product with a number on a GPU are ATen's", "[cuda_kernels]") {
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

TEST_CASE("packing to e4m3 on a GPU is the CPU's", "[cuda_kernels]") {
  torch::manual_seed(12);
  for (const auto dtype : narrow_dtypes) {
    for (const int64_t n : {1, 64, 127, 128, 300}) {
      const ThreadOrder setting(orders[n % 3]);
      constexpr int64_t rows = 40;
      at::Tensor x = torch::randn({rows, n}) * torch::logspace(-35, 30, rows).view({rows, 1});
      x[3][n - 1] = NAN, x[4][0] = INFINITY, x[5] = 0, x[6] = -448;
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

TEST_CASE("cross-entropy on a GPU is that of its formula", "[cuda_kernels]") {
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
          .add_(classes > 1 ? 200 : 0);  // whose exponentials overflow in float32
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
      wanted[4] = 0, d[4].zero_();
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
      if (classes > 1)
        CHECK(distance(logits.narrow(1, 0, classes) * 1.05, d) > tolerance(dtype));  // the control
    }
  }
  // A target that is not a class, and logits that are not finite.
  const at::Tensor logits = torch::zeros({3, 32}), losses = torch::zeros({3}),
                   targets = torch::tensor({32, 1, 1});
  logits[1][0] = NAN, logits[2][0] = INFINITY;
  REQUIRE(cross_entropy_rows_cuda(matrix_of(logits), 3, 32, targets.const_data_ptr<int64_t>(), -100,
                                  1, true, losses.mutable_data_ptr<float>(),
                                  nullptr) == cudaSuccess);
  CHECK(losses.isnan().all().item<bool>());
  CHECK(logits.isnan().any(1).all().item<bool>());
}

bool same(const StepControl& a, const StepControl& b) {
  const auto numbers = [](const StepControl& c) {
    return torch::tensor({c.grad_norm, c.grad_scale, c.loss_scale, c.correction1, c.correction2,
                          c.mu, c.next_mu, c.mu_product},
                         at::kDouble);
  };
  return equal_bits(numbers(a), numbers(b)) && a.updates == b.updates &&
         a.failed_step == b.failed_step && a.skip == b.skip && a.moved == b.moved &&
         a.lost == b.lost;
}

TEST_CASE("the decision on a GPU is the CPU's", "[cuda_kernels]") {
  std::mt19937 random(3);
  StepRequest request{.rule = {.kind = rule_kind<NAdam>,
                               .lr = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .momentum_decay = 0.004},
                      .policy = {.growth_interval = 3, .min_scale = 16, .max_skips = 4}};
  int64_t skips = 0, failures = 0, clipped = 0, grown = 0;
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (int run = 0; run < 16; ++run) {
      StepControl ours, wanted;
      ScaleState our_scale{.scale = 64}, wanted_scale = our_scale;
      const bool scaled = run % 2 == 1;
      request.clip = run % 4 < 2 ? 0 : 20;
      for (request.step = 0; request.step < 20; ++request.step) {
        const int64_t counts[] = {0, 1, 255, 256, 257, 3000};
        std::vector<double> partials(static_cast<size_t>(counts[random() % 6]));
        for (double& p : partials) p = random() % 1024 / 64.0;  // exact sums, in any order
        const double bad[] = {NAN, INFINITY};
        if (random() % 6 == 0 && !partials.empty())
          partials[random() % partials.size()] = bad[random() % 2];
        const float losses[] = {1, 1, 1, 1, 1, -2, INFINITY, NAN};
        const float loss = losses[random() % 8];
        const float* seen = random() % 3 == 0 ? nullptr : &loss;
        ours.moved = wanted.moved = 9, ours.lost = wanted.lost = 8;  // of the previous step
        const auto n = static_cast<int64_t>(partials.size());
        const float before = wanted_scale.scale;
        decide_cpu(request, partials.data(), n, seen, &wanted, scaled ? &wanted_scale : nullptr);
        CHECK(decide_cuda(request, partials.data(), n, seen, &ours, scaled ? &our_scale : nullptr,
                          nullptr) == cudaSuccess);
        REQUIRE(same(ours, wanted));
        REQUIRE(std::memcmp(&our_scale, &wanted_scale, sizeof(ScaleState)) == 0);
        skips += wanted.skip,
            clipped += wanted.grad_scale * wanted.loss_scale<1, grown += wanted_scale.scale> before;
      }
      failures += wanted.failed_step != 0;
    }
  }
  for (const int64_t count : {skips, failures, clipped, grown})
    CHECK(count > 3);  // each case occurred
}

TEST_CASE("the decisions of a step in stages on a GPU are the CPU's", "[cuda_kernels]") {
  std::mt19937 random(4);
  int64_t skips = 0, failures = 0;
  for (const Order order : orders) {
    const ThreadOrder setting(order);
    for (int run = 0; run < 40; ++run) {
      const int64_t counts[] = {0, 1, 255, 256, 257, 3000};
      std::vector<double> partials(static_cast<size_t>(counts[random() % 6]));
      for (double& p : partials) p = random() % 1024 / 64.0;  // exact sums, in any order
      if (random() % 4 == 0 && !partials.empty()) partials[random() % partials.size()] = NAN;
      const auto n = static_cast<int64_t>(partials.size());

      StepControl ours, wanted;
      ours.failed_step = wanted.failed_step = random() % 4 == 0 ? 3 : 0;
      decide_gradient_cpu(partials.data(), n, &wanted);
      CHECK(decide_gradient_cuda(partials.data(), n, &ours, nullptr) == cudaSuccess);
      REQUIRE(same(ours, wanted));
      skips += wanted.skip;

      const float losses[] = {1, 1, INFINITY, NAN};
      const float loss = losses[random() % 4];
      const float* seen = random() % 3 == 0 ? nullptr : &loss;
      end_stages_cpu(run, partials.data(), n, seen, &wanted);
      CHECK(end_stages_cuda(run, partials.data(), n, seen, &ours, nullptr) == cudaSuccess);
      REQUIRE(same(ours, wanted));
      failures += wanted.failed_step == run + 1;
    }
  }
  CHECK(skips > 3);
  CHECK(failures > 3);
}

/// Parameters of every type with their gradients and state. All are drawn from one seed, so that
/// two objects have the same values.
struct Parameters {
  std::vector<at::Tensor>
      tensors;                   // all that UpdateArgs point to, with more elements on either side
  std::vector<at::Tensor> sums;  // of squares of the gradients
  std::vector<UpdateArgs> args;

  explicit Parameters(const UpdateRule& rule) {
    torch::manual_seed(4);
    std::mt19937 random(5);
    const auto pick = [&](const auto& of) { return of[random() % std::size(of)]; };
    const int64_t small_sizes[] = {1, 5, 60}, sizes[] = {0, 255, 256, 257, 700, 4097, 16384, 16387};
    // 165 small ones that compute in float32, which is more than the 160 of one launch, then 25 in
    // float64, then a random mix.
    for (int i = 0; i < 210; ++i) {
      const bool wide = i < 165 ? false : i < 190 ? true : random() % 2 == 0;
      UpdateArgs a;
      a.n = i < 165 && i % 20 != 0 ? pick(small_sizes) : pick(sizes);
      // Kind 0: all pointers are aligned, so the kernel updates packs of elements. Kind 1: none is
      // aligned. Kind 2: all are aligned except `low`, if there is one.
      const int64_t kind = i % 3;
      int64_t margin = kind == 1 ? 1 : 4;
      const auto add = [&](at::ScalarType dtype, const at::Tensor& values) {
        tensors.push_back(values.to(dtype));
        return static_cast<char*>(tensors.back().mutable_data_ptr()) +
               margin * tensors.back().element_size();
      };
      const at::ScalarType narrow[] = {at::kFloat, at::kBFloat16, at::kBFloat16, at::kHalf};
      const auto dtype = wide ? at::kDouble : pick(narrow), grad_dtype = pick(dtypes);
      const auto state_dtype = wide ? at::kDouble : at::kFloat;
      a.param_type = element_of(dtype), a.grad_type = element_of(grad_dtype);
      a.param = add(dtype, torch::randn({a.n + 8}, at::kDouble));
      at::Tensor grad = torch::randn({a.n + 8}, at::kDouble);
      if (a.n > 300) grad[300] = INFINITY, grad[301] = NAN, grad[302] = 0;
      a.grad = add(grad_dtype, grad);
      with_rule(rule.kind, [&](auto r) {
        for (const RuleState& s : decltype(r)::state(rule))
          a.state[s.place] = add(state_dtype, torch::rand({a.n + 8}, at::kDouble));
      });
      if (random() % 2 == 0) a.average = add(state_dtype, torch::rand({a.n + 8}, at::kDouble));
      a.lr_scale = random() % 2 == 0 ? 1 : 0.7;
      sums.push_back(torch::rand({3}, at::kDouble));
      a.sums = sums.back().const_data_ptr<double>();
      a.chunks = 1;
      if (random() % 2 == 0) {
        const auto low = random() % 2 == 0 ? at::kBFloat16 : at::kHalf;
        if (kind == 2) margin = 3;
        a.low = add(low, torch::zeros({a.n + 8}));
        a.low_type = element_of(low);
      }
      a.weight_decay = random() % 2 == 0 ? 0 : 0.1;
      a.stochastic = dtype == at::kBFloat16 && random() % 2 == 0;
      a.key = make_key(random(), 6);
      args.push_back(a);
    }
  }
  int64_t count() const { return static_cast<int64_t>(args.size()); }
  bool same(const Parameters& other) const {
    return std::equal(tensors.begin(), tensors.end(), other.tensors.begin(), other.tensors.end(),
                      equal_bits);
  }
};

TEST_CASE("updates on a GPU are the CPU's", "[cuda_kernels]") {
  const std::vector<UpdateRule> rules{
      {.kind = rule_kind<Sgd>, .lr = 1e-3},
      {.kind = rule_kind<Momentum>, .lr = 1e-3, .momentum = 0.9, .dampening = 0.2},
      {.kind = rule_kind<Momentum>, .nesterov = true, .lr = 1e-3, .momentum = 0.9},
      {.kind = rule_kind<Adagrad>, .lr = 2e-3, .eps = 1e-8, .lr_decay = 0.1},
      {.kind = rule_kind<RMSprop>, .lr = 1e-3, .eps = 1e-8, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>, .lr = 1e-3, .eps = 1e-8, .momentum = 0.9, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>, .centered = true, .lr = 1e-3, .eps = 1e-8, .alpha = 0.95},
      {.kind = rule_kind<RMSprop>,
       .centered = true,
       .lr = 1e-3,
       .eps = 1e-8,
       .momentum = 0.9,
       .alpha = 0.95},
      {.kind = rule_kind<Adam>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97, .eps = 1e-8},
      {.kind = rule_kind<AdamW>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .clip_value = 0.5},
      {.kind = rule_kind<AdamAmsgrad>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .clip_parameter = 0.5},
      {.kind = rule_kind<AdamWAmsgrad>,
       .lr = 2e-3,
       .beta1 = 0.85,
       .beta2 = 0.97,
       .eps = 1e-8,
       .average_decay = 0.9},
      {.kind = rule_kind<NAdam>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97, .eps = 1e-8},
      {.kind = rule_kind<Lion>, .lr = 2e-3, .beta1 = 0.85, .beta2 = 0.97},
      {.kind = rule_kind<Descend>, .lr = 2e-3},
  };
  int turn = 0;
  for (const UpdateRule& rule : rules) {
    for (const int64_t updates : {1, 5}) {
      INFO("rule " << turn / 2 << ", update " << updates);
      const ThreadOrder setting(orders[turn++ % 3]);
      Parameters ours(rule), wanted(rule);
      StepControl control{
          .updates = updates, .grad_scale = 0.37, .correction1 = 0.4, .correction2 = 0.3};
      control.mu = 0.5, control.next_mu = 0.6, control.mu_product = 0.3;
      control.moved = 10, control.lost = 4;
      StepControl our_control = control;
      for (const UpdateArgs& a : wanted.args) update_cpu(a, rule, &control, 0, a.n);
      CHECK(update_cuda(ours.args.data(), ours.count(), rule, &our_control, nullptr) ==
            cudaSuccess);
      CHECK(ours.same(wanted));
      CHECK(same(our_control, control));
      CHECK(control.lost > 100);
      CHECK(control.moved > control.lost + 100);
    }
  }
  // A skipped step must write nothing. A step that is not skipped is the control.
  for (const bool skip : {true, false}) {
    Parameters ours(rules.back());
    const StepControl asked{.updates = 1, .skip = skip, .moved = 10, .lost = 4};
    StepControl control = asked;
    CHECK(update_cuda(ours.args.data(), ours.count(), rules.back(), &control, nullptr) ==
          cudaSuccess);
    CHECK(ours.same(Parameters(rules.back())) == skip);
    CHECK(same(control, asked) == skip);
  }
  const UpdateArgs none[2];
  CHECK(update_cuda(none, 0, rules[0], nullptr, nullptr) == cudaSuccess);
  CHECK(update_cuda(none, 2, rules[0], nullptr, nullptr) == cudaSuccess);
}

}  // namespace
