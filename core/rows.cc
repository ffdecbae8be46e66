#include "core/rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "core/kernels/gemm.h"
#include "core/kernels/row_ops.h"
#include "core/parallel.h"

namespace lathe {
namespace {

constexpr int64_t shortest = 16, longest = 1 << 15;  // smallest and largest number of elements of a
                                                     // row
constexpr int64_t grain = 1 << 14;                   // the smallest number of elements that is
                                                     // worth a thread

/// Divides the rows of x into parts, and calls f(first, rows) for each part, on ATen's threads.
/// `first` is the index of the part's first element, and `rows` is the number of rows in the part.
template <class F>
void for_rows(const at::Tensor& x, const F& f) {
  const int64_t columns = x.size(-1);
  parallel_for(0, x.numel() / columns, std::max<int64_t>(1, grain / columns),
               [&](int64_t begin, int64_t end) { f(begin * columns, end - begin); });
}

/// Returns the tensor y that a kernel f(x, rows, columns, y) computes from x.
template <class F>
at::Tensor of_each_row(const at::Tensor& x, const F& f) {
  const at::Tensor from = x.contiguous(), y = at::empty(x.sizes(), x.options());
  for_rows(x, [&](int64_t first, int64_t rows) {
    f(from.const_data_ptr<float>() + first, rows, x.size(-1), y.mutable_data_ptr<float>() + first);
  });
  return y;
}

/// Returns the tensor dx that a kernel f(dy, y, rows, columns, dx) computes from dy and y.
template <class F>
at::Tensor of_each_row(const at::Tensor& dy, const at::Tensor& y, const F& f) {
  const at::Tensor up = dy.contiguous(), of = y.contiguous(),
                   dx = at::empty(y.sizes(), y.options());
  for_rows(y, [&](int64_t first, int64_t rows) {
    f(up.const_data_ptr<float>() + first, of.const_data_ptr<float>() + first, rows, y.size(-1),
      dx.mutable_data_ptr<float>() + first);
  });
  return dx;
}

}  // namespace

bool has_row_kernels(at::IntArrayRef sizes) {
  if (sizes.empty() || !gemm_ready(Element::f32)) return false;
  const int64_t columns = sizes.back();
  return columns >= shortest && columns <= longest && c10::multiply_integers(sizes) >= 2 * columns;
}

bool has_row_kernels(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && has_row_kernels(x.sizes());
}

bool has_row_sums(const at::Tensor& x) {
  return has_row_kernels(x) && (x.stride(-1) == 1 || x.stride(-1) == 0);
}

at::Tensor row_sums(const at::Tensor& x, at::IntArrayRef sizes) {
  const int64_t columns = x.size(-1);
  const bool is_expanded = x.stride(-1) == 0;
  // An expanded row repeats one number, so read only that number.
  const at::Tensor from = is_expanded ? x.select(-1, 0).reshape({-1}) : x.reshape({-1, columns}),
                   y = at::empty(sizes, x.options());
  const int64_t stride = from.stride(0);

  for_rows(x, [&](int64_t first, int64_t rows) {
    const int64_t row = first / columns;
    const auto* const values = from.const_data_ptr<float>() + row * stride;
    auto* const sums = y.mutable_data_ptr<float>() + row;
    if (!is_expanded) return sum_rows(values, stride, rows, columns, sums);
    // Sum copies of the number instead of multiplying it, so that the sum is bitwise equal to the
    // sum of a row that is not expanded.
    std::vector<float> copies(static_cast<size_t>(columns));
    for (int64_t r = 0; r < rows; ++r) {
      std::ranges::fill(copies, values[r * stride]);
      sum_rows(copies.data(), columns, 1, columns, sums + r);
    }
  });
  return y;
}

at::Tensor row_softmax(const at::Tensor& x) { return of_each_row(x, softmax_rows); }

at::Tensor row_softmax_gradient(const at::Tensor& dy, const at::Tensor& y) {
  return of_each_row(dy, y, softmax_rows_gradient);
}

at::Tensor row_log_softmax(const at::Tensor& x) { return of_each_row(x, log_softmax_rows); }

at::Tensor row_log_softmax_gradient(const at::Tensor& dy, const at::Tensor& y) {
  return of_each_row(dy, y, log_softmax_rows_gradient);
}

}  // namespace lathe
