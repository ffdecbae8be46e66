#include "snake.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <lathe/autograd/op.h>

#include <cmath>

namespace {

using namespace lathe;

constexpr int64_t grain = 1 << 12;  // elements of a task; smaller tasks cost more than they save

template <class T>
void snake_cpu(const T* x, T* y, int64_t n, double a) {
  at::parallel_for(0, n, grain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T s = std::sin(static_cast<T>(a) * x[i]);
      y[i] = x[i] + s * s / static_cast<T>(a);
    }
  });
}
template <class T>
void snake_backward_cpu(const T* x, const T* dy, T* dx, int64_t n, double a) {
  at::parallel_for(0, n, grain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      dx[i] = dy[i] * (1 + std::sin(static_cast<T>(2 * a) * x[i]));
  });
}

/// Calls f with a value of t's element type.
template <class F>
void with_type(const at::Tensor& t, F&& f) {
  LATHE_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kDouble,
              "supports only float32 and float64");
#ifndef OWN_OP_CUDA
  LATHE_CHECK(t.is_cpu(), "was built without CUDA");
#endif
  t.scalar_type() == at::kFloat ? f(float()) : f(double());
}

struct Snake {
  static constexpr OpInfo info{.name = "snake", .amp = Amp::fp32};
  double a;
  Saved x{};

  at::Tensor forward(const at::Tensor& x_) {
    const at::Tensor& in = x = x_.contiguous();
    at::Tensor y = at::empty_like(in);
    with_type(in, [&]<class T>(T) {
#ifdef OWN_OP_CUDA
      if (in.is_cuda())
        return snake_cuda(in.const_data_ptr<T>(), y.mutable_data_ptr<T>(), in.numel(), a);
#endif
      snake_cpu(in.const_data_ptr<T>(), y.mutable_data_ptr<T>(), in.numel(), a);
    });
    return y;
  }
  // dx = dy (1 + sin(2 a x))
  Grads<1> backward(const at::Tensor& dy_, Needs<1>) const {
    const at::Tensor &in = x.data(), dy = dy_.contiguous();
    at::Tensor dx = at::empty_like(in);
    with_type(in, [&]<class T>(T) {
#ifdef OWN_OP_CUDA
      if (in.is_cuda())
        return snake_backward_cuda(in.const_data_ptr<T>(), dy.const_data_ptr<T>(),
                                   dx.mutable_data_ptr<T>(), in.numel(), a);
#endif
      snake_backward_cpu(in.const_data_ptr<T>(), dy.const_data_ptr<T>(), dx.mutable_data_ptr<T>(),
                         in.numel(), a);
    });
    return {dx};
  }
  // A sine counts as one operation.
  OpFlops flops(const at::Tensor&, const at::Tensor& y) const { return flops_each(y, 5, 4); }
};

}  // namespace

Variable snake(const Variable& x, double a) { return apply(Snake{.a = a}, x); }
