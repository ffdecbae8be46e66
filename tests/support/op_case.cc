#include "tests/support/op_case.h"
#include "tests/support/catch.h"

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/ops.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/rng.h"
#include "tests/support/torch_oracle.h"

namespace lathe::test {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Returns random float64 values in [low, high], which are the same on every machine.
at::Tensor values(const std::vector<int64_t>& shape, double low, double high,
                  const std::string& seed) {
  at::Tensor t = torch::empty(shape, at::kDouble);
  const RngKey key = make_key(1, hash_name(seed));
  for (int64_t i = 0; i < t.numel(); ++i) {
    t.view(-1)[i] = low + (high - low) * unit(philox(counter(static_cast<uint64_t>(i), 0), key)[0]);
  }
  return t;
}

/// Returns a non-contiguous tensor with the same values.
at::Tensor scattered(const at::Tensor& t) {
  return t.dim() < 2 ? torch::stack({t, t}, -1).select(-1, 0)
                     : t.transpose(0, -1).contiguous().transpose(0, -1);
}

struct Result {
  at::Tensor y;
  Tensors grads;
};

Result run_ours(const OpCase& row, const Tensors& x, const at::Tensor& dy) {
  std::vector<Variable> in;
  for (size_t i = 0; i < x.size(); ++i)
    in.push_back(row.inputs[i].grad ? Variable::parameter(x[i]) : Variable(x[i]));
  const Variable y = row.ours(in);
  Result r{y.data(), {}};
  for (auto& g : grad(y, in, Variable(dy))) r.grads.push_back(g.data());
  return r;
}

Result run_oracle(const OpCase& row, const Tensors& x, const at::Tensor& dy) {
  Tensors in;
  Tensors needed;
  for (size_t i = 0; i < x.size(); ++i) {
    in.push_back(x[i].detach().clone().requires_grad_(row.inputs[i].grad));
    if (row.inputs[i].grad) needed.push_back(in.back());
  }
  const at::Tensor y = row.oracle(in);
  const auto grads = torch::autograd::grad({y}, needed, {dy}, false, false, /*allow_unused=*/true);
  Result r{y.detach(), Tensors(x.size())};
  for (size_t i = 0, next = 0; i < x.size(); ++i) {
    if (row.inputs[i].grad) r.grads[i] = grads[next++];
  }
  return r;
}

class Checker {
 public:
  explicit Checker(const OpCase& row) : row_(row) {
    x_ = inputs_of(row);
    Tensors plain = x_;
    dy_ = values(row.oracle(plain).sizes().vec(), -1, 1, "cotangent" + row.op + row.label);
  }

  std::vector<std::string> run() {
    try {
      if (row_.exact) against_oracle();
      if (row_.exact && row_.differences) against_differences();
      if (row_.exact && row_.second &&
          std::all_of(row_.inputs.begin(), row_.inputs.end(),
                      [](const Input& in) { return in.grad; }))
        second();
      if (row_.exact) scattered_inputs();
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) in_dtype(dtype, at::kCPU);
      if (torch::cuda::is_available()) {
        if (row_.exact) in_dtype(at::kDouble, at::kCUDA);
        for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) in_dtype(dtype, at::kCUDA);
      }
    } catch (const std::exception& e) {
      failures_.push_back(str(row_.op, " (", row_.label, "): ", e.what()));
    }
    return failures_;
  }

 private:
  /// Checks that |a - b| <= atol + rtol * max|b| for each element. An undefined tensor counts as
  /// zeros.
  void compare(const std::string& what, const at::Tensor& ours, const at::Tensor& wanted,
               double atol, double rtol) {
    std::string problem;
    if (!wanted.defined() || !ours.defined()) {
      if (ours.defined() && ours.ne(0).any().item<bool>())
        problem = "a gradient where there is none";
      if (wanted.defined() && wanted.ne(0).any().item<bool>()) problem = "no gradient";
    } else if (ours.sizes() != wanted.sizes()) {
      problem = str("shape ", describe(ours.sizes()), " instead of ", describe(wanted.sizes()));
    } else if (ours.numel() > 0) {
      const at::Tensor a = ours.to(at::kCPU, at::kDouble), b = wanted.to(at::kDouble);
      const double error = (a - b).abs().max().item<double>();
      const double allowed = atol + rtol * b.abs().max().item<double>();
      if (!(error <= allowed)) problem = str("off by ", error, ", allowed ", allowed);
    }
    if (!problem.empty())
      failures_.push_back(str(row_.op, " (", row_.label, ") ", what, ": ", problem));
  }

  void compare(const std::string& what, const Result& ours, const Result& wanted, double atol,
               double rtol) {
    compare(what + " forward", ours.y, wanted.y, atol, rtol);
    for (size_t i = 0; i < wanted.grads.size(); ++i) {
      compare(str(what, " gradient ", i), ours.grads[i], wanted.grads[i], atol, rtol);
    }
  }

  // In float64, the results differ only because sums are computed in another order.
  void against_oracle() {
    compare("against LibTorch", run_ours(row_, x_, dy_), run_oracle(row_, x_, dy_), 1e-13, 1e-11);
  }

  // Central differences have a truncation error of about eps^2 and a rounding error of about
  // 1e-16 / eps.
  void against_differences() {
    const auto ours = run_ours(row_, x_, dy_);
    for (size_t i = 0; i < x_.size(); ++i) {
      if (!row_.inputs[i].grad) continue;
      compare(str("against differences, gradient ", i), ours.grads[i],
              differences(x_[i], [&] { return (value() * dy_).sum().item<double>(); }), 1e-5, 1e-3);
    }
  }

  at::Tensor value() {
    std::vector<Variable> in;
    for (const auto& t : x_) in.emplace_back(t);
    return row_.ours(in).data();
  }

  template <class F>
  static at::Tensor differences(const at::Tensor& x, F&& f) {
    constexpr double eps = 1e-6;
    at::Tensor d = torch::empty_like(x);
    auto* p = x.mutable_data_ptr<double>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double at = p[i];
      p[i] = at + eps;
      const double above = f();
      p[i] = at - eps;
      const double below = f();
      p[i] = at;
      d.view(-1)[i] = (above - below) / (2 * eps);
    }
    return d;
  }

  /// Checks second derivatives. Compares d/dx of sum_i(r_i * gradient_i), for fixed random r, with
  /// LibTorch and with central differences.
  void second() {
    std::vector<Variable> in;
    for (const auto& t : x_) in.push_back(Variable::parameter(t));
    const auto weigh = [&](size_t i) {
      return values(row_.inputs[i].shape, -1, 1, "weight" + std::to_string(i));
    };

    Variable s;
    const auto first = grad(row_.ours(in), in, Variable(dy_), /*create_graph=*/true);
    for (size_t i = 0; i < in.size(); ++i) {
      if (!first[i].defined()) continue;
      const Variable term = sum(first[i] * Variable(weigh(i)));
      s = s.defined() ? s + term : term;
    }

    // Compute the same sum with LibTorch.
    Tensors tin;
    for (const auto& t : x_) tin.push_back(t.detach().clone().requires_grad_());
    const auto tfirst =
        torch::autograd::grad({row_.oracle(tin)}, tin, {dy_}, true, /*create_graph=*/true, true);
    at::Tensor ts = torch::zeros({}, at::kDouble);
    for (size_t i = 0; i < tin.size(); ++i) {
      if (tfirst[i].defined()) ts = ts + (tfirst[i] * weigh(i)).sum();
    }

    const auto wanted = ts.requires_grad()
                            ? torch::autograd::grad({ts}, tin, {}, false, false, true)
                            : Tensors(tin.size());
    const auto got = s.requires_grad() ? grad(s, in) : std::vector<Variable>(in.size());

    for (size_t i = 0; i < in.size(); ++i) {
      compare(str("second derivative ", i, " against LibTorch"), got[i].data(), wanted[i], 1e-12,
              1e-9);
      if (!row_.differences || !got[i].defined()) continue;
      compare(str("second derivative ", i, " against differences"), got[i].data(),
              differences(x_[i],
                          [&] {
                            double total = 0;
                            const auto r = run_ours(row_, x_, dy_);
                            for (size_t j = 0; j < r.grads.size(); ++j) {
                              if (r.grads[j].defined())
                                total += (r.grads[j] * weigh(j)).sum().item<double>();
                            }
                            return total;
                          }),
              1e-5, 1e-3);
    }
  }

  void scattered_inputs() {
    Tensors x;
    for (const auto& t : x_) x.push_back(scattered(t));
    compare("non-contiguous", run_ours(row_, x, scattered(dy_)), run_oracle(row_, x_, dy_), 1e-13,
            1e-11);
  }

  /// Compares the op in a lower dtype with the float64 oracle on the same rounded inputs. The
  /// allowed error is a multiple of the dtype's spacing.
  void in_dtype(at::ScalarType dtype, at::DeviceType device) {
    Tensors low, exact;
    for (const auto& t : x_) {
      low.push_back(t.to(device, dtype));
      exact.push_back(low.back().to(at::kCPU, at::kDouble));
    }

    std::vector<Variable> in;
    for (const auto& t : low) in.emplace_back(t);
    const at::Tensor dy = dy_.to(device, row_.ours(in).dtype());
    const auto ours = run_ours(row_, low, dy);

    const double spacing = !row_.exact            ? 0x1p-7
                           : dtype == at::kDouble ? 1e-13
                           : dtype == at::kFloat  ? 0x1p-22
                           : dtype == at::kHalf   ? 0x1p-10
                                                  : 0x1p-7;
    const auto wanted = run_oracle(row_, exact, dy.to(at::kCPU, at::kDouble));
    // A gate near 1 has a rounding error of half the spacing of 1, even if the gate multiplies a
    // small gradient.
    const double atol = dtype == at::kFloat ? 0x1p-24 : 0.05 * spacing;
    compare(str(dtype_name(dtype), device == at::kCUDA ? " on CUDA" : ""), ours, wanted, atol,
            row_.low_scale * spacing);

    for (size_t i = 0; i < ours.grads.size(); ++i) {
      if (ours.grads[i].defined() && ours.grads[i].scalar_type() != dtype) {
        failures_.push_back(str(row_.op, " (", row_.label, "): gradient ", i, " is ",
                                describe(ours.grads[i]), " for a ", dtype_name(dtype), " input"));
      }
    }
  }

  const OpCase& row_;
  Tensors x_;
  at::Tensor dy_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<at::Tensor> inputs_of(const OpCase& row) {
  Tensors x;
  for (const Input& in : row.inputs)
    x.push_back(values(in.shape, in.low, in.high, row.op + row.label + std::to_string(x.size())));
  return x;
}
std::vector<Variable> variables_of(const OpCase& row, at::ScalarType dtype) {
  const Tensors x = inputs_of(row);
  std::vector<Variable> in;
  for (size_t i = 0; i < x.size(); ++i) {
    const at::Tensor t = x[i].to(dtype);
    in.push_back(row.inputs[i].grad ? Variable::parameter(t) : Variable(t));
  }
  return in;
}
std::vector<std::string> check_op(const OpCase& row) { return Checker(row).run(); }

}  // namespace lathe::test
