// Random functions of elementwise ops and row reductions, for the tests of fusion.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "autograd/ops.h"
#include "core/dtype.h"

namespace lathe {

/// Returns whether two tensors have the same dtype, shape and bits, up to the payloads of NaNs.
/// Rounds float64 to float32 first.
inline bool has_bits_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.to(at::kFloat).contiguous(), y = b.to(at::kFloat).contiguous();
  const at::Tensor nan = x.isnan().logical_and(y.isnan());
  return x.masked_fill(nan, 0).view(at::kInt).equal(y.masked_fill(nan, 0).view(at::kInt));
}

/// A random function of elementwise ops and row reductions. It depends only on `seed`.
class RandomChain {
 public:
  explicit RandomChain(uint64_t seed) : seed_(seed) {}

  Variable operator()(const std::vector<Variable>& given) const {
    std::mt19937_64 random(seed_);
    const auto draw = [&](size_t n) { return static_cast<size_t>(random() % n); };
    std::vector<Variable> values{given[0] * 1.5};

    const auto any = [&]() -> Variable {
      // Draw an input or a previous value, so that some values are used several times.
      return draw(2) == 0 ? values[draw(values.size())] : given[draw(given.size())];
    };

    const size_t steps = 1 + draw(9);
    for (size_t i = 0; i < steps; ++i) {
      const Variable a = values[draw(3) == 0 ? draw(values.size()) : values.size() - 1], b = any();
      // Draw the five binary ops more often than the others.
      switch (draw(2) == 0 ? draw(5) : draw(30)) {
        case 0: values.push_back(a + b); break;
        case 1: values.push_back(b - a); break;
        case 2: values.push_back(a * b); break;
        case 3: values.push_back(a / (b * b + 0.5)); break;
        case 4: values.push_back(draw(8) == 0 ? b / a : b / (a * a + 0.5)); break;
        case 5: values.push_back(a + 0.3); break;
        case 6: values.push_back(a * -0.7); break;
        case 7: values.push_back(a * a); break;
        case 8: values.push_back(exp(a * -0.1)); break;
        // Create few NaNs, since they would hide other errors.
        case 9: values.push_back(draw(8) == 0 ? log(a) : log(a * a + 0.5)); break;
        case 10: values.push_back(tanh(a)); break;
        case 11: values.push_back(sigmoid(a)); break;
        case 12: values.push_back(relu(a)); break;
        case 13: values.push_back(silu(a)); break;
        case 14: values.push_back(gelu(a)); break;
        case 15: values.push_back(gelu(a, Gelu::exact)); break;
        case 16: values.push_back(draw(8) == 0 ? sqrt(a) : sqrt(a * a + 0.1)); break;
        case 17: values.push_back(rsqrt(a * a + 0.3)); break;
        case 18: values.push_back(pow(a, draw(2) == 0 ? 2.0 : 3.0)); break;
        case 19: values.push_back(1.0 / (a * a + 1.0)); break;
        case 20: values.push_back(where(a > 0.1, a, a * 0.3)); break;
        case 21: values.push_back(masked_fill(a, a < a * a, 0.25)); break;
        case 22: values.push_back(erf(a)); break;
        // These steps compute sums or means over rows, and apply ops to the results.
        case 23: values.push_back(a - mean(a, {-1}, true)); break;
        case 24: values.push_back(a * rsqrt(mean(a * a, {-1}, true) + 0.1) * b); break;
        case 25: {
          const Variable total = sum(relu(a), {-1}, true) + 0.5;
          values.push_back(relu(b) / total + sqrt(total) * a);
          break;
        }
        case 26: values.push_back(draw(2) == 0 ? softmax(a, -1) : log_softmax(a, -1)); break;
        case 27: values.push_back(a + tanh(sum(a * b, {-1}, true)) * 0.1); break;
        case 28: {
          // Use a row mean once detached, and twice with a gradient.
          const Variable m = mean(sigmoid(a), {-1}, true);
          values.push_back(a * m.detach() + m * exp(m * -0.1) * a);
          break;
        }
        default: values.push_back(cast(a, a.dtype() == at::kFloat ? at::kBFloat16 : at::kFloat));
      }
    }
    return values.back();
  }

 private:
  uint64_t seed_;
};

/// Applies six elementwise ops.
inline Variable six_ops(const Variable& x, const Variable& w, const Variable& b) {
  const Variable h = x * w + b;
  return h * sigmoid(h * 1.702) + x;
}

}  // namespace lathe
