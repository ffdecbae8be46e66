#include "autograd/create.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/kernels/random.h"

namespace lathe {
namespace {

at::TensorOptions with_default_dtype(at::TensorOptions options) {
  return options.has_dtype() ? options : options.dtype(at::kFloat);
}
/// Converts values that were made on the CPU to the dtype and device of `options`.
Variable to_options(const at::Tensor& t, const at::TensorOptions& options) {
  return Variable(t.to(with_default_dtype(options).device(options.device()), /*non_blocking=*/false,
                       /*copy=*/false));
}

}  // namespace

Variable zeros(at::IntArrayRef sizes, at::TensorOptions options) {
  return Variable(at::zeros(sizes, with_default_dtype(options)));
}
Variable ones(at::IntArrayRef sizes, at::TensorOptions options) { return full(sizes, 1, options); }
Variable full(at::IntArrayRef sizes, double value, at::TensorOptions options) {
  return Variable(at::full(sizes, value, with_default_dtype(options)));
}

Variable arange(double start, double end, double step, at::TensorOptions options) {
  LATHE_CHECK(step != 0 && (end - start) / step >= 0, "arange: a step of ", step,
              " does not lead from ", start, " to ", end,
              "; it must not be 0 and must have the sign of end - start");
  return Variable(at::arange(start, end, step, with_default_dtype(options)));
}
Variable arange(double end, at::TensorOptions options) { return arange(0, end, 1, options); }

Variable linspace(double start, double end, int64_t n, at::TensorOptions options) {
  LATHE_CHECK(n >= 1, "linspace: n must be at least 1, not ", n);
  return Variable(at::linspace(start, end, n, with_default_dtype(options)));
}

Variable randn(at::IntArrayRef sizes, uint64_t seed, at::TensorOptions options) {
  const at::Tensor t = at::empty(sizes, at::kFloat);
  fill_normal(t.mutable_data_ptr<float>(), t.numel(), 1, make_key(seed, hash_name("randn")));
  return to_options(t, options);
}

Variable one_hot(const at::Tensor& ids, int64_t classes, at::TensorOptions options) {
  LATHE_CHECK(ids.scalar_type() == at::kLong, "one_hot: ids must be int64, not ", describe(ids));
  LATHE_CHECK(classes >= 1 && (ids.numel() == 0 || (ids.min().item<int64_t>() >= 0 &&
                                                    ids.max().item<int64_t>() < classes)),
              "one_hot: ", describe(ids), ": ids must be in [0, ", classes,
              "), and classes must be at least 1");
  auto sizes = ids.sizes().vec();
  sizes.push_back(classes);
  if (!options.has_device()) options = options.device(ids.device());
  at::Tensor y = at::zeros(sizes, with_default_dtype(options));
  return Variable(y.scatter_(-1, ids.to(y.device()).unsqueeze(-1), 1));
}

Nested::Nested(std::initializer_list<Nested> rows) : sizes_{static_cast<int64_t>(rows.size())} {
  for (const Nested& row : rows) {
    LATHE_CHECK(row.sizes_ == rows.begin()->sizes_, "tensor: rows of shapes ",
                describe(rows.begin()->sizes_), " and ", describe(row.sizes_),
                " in one tensor; all rows must have the same shape");
    values_.insert(values_.end(), row.values_.begin(), row.values_.end());
  }
  if (rows.size() > 0)
    sizes_.insert(sizes_.end(), rows.begin()->sizes_.begin(), rows.begin()->sizes_.end());
}

Variable tensor(const Nested& values, at::TensorOptions options) {
  const at::Tensor t = at::empty(values.sizes(), at::kDouble);
  std::copy(values.values().begin(), values.values().end(), t.mutable_data_ptr<double>());
  return to_options(t, options);
}

}  // namespace lathe
