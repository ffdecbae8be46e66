// The formulas of core/kernels/update.h, once for CPUs and cards.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/kernels/update.h"

#ifdef __CUDACC__
#define LATHE_BOTH __host__ __device__
#else
#define LATHE_BOTH
#endif

namespace lathe {

/// Moves a loss scale after a step; true where that ends the run.
LATHE_BOTH inline bool move_scale(ScaleState& s, const ScalePolicy& policy, bool found_inf) {
  if (!found_inf) {
    s.skipped_in_row = 0;
    if (policy.dynamic && ++s.growth_tracker == policy.growth_interval) {
      const auto grown = static_cast<float>(s.scale * policy.growth_factor);
      if (std::isfinite(grown)) s.scale = grown;
      s.growth_tracker = 0;
    }
    return false;
  }
  ++s.skipped;
  if (++s.skipped_in_row >= policy.max_skips) return true;
  if (!policy.dynamic) return false;
  s.growth_tracker = 0;
  const auto less = static_cast<float>(s.scale * policy.backoff_factor);
  if (less < policy.min_scale) return true;
  s.scale = less;
  return false;
}

/// What a step does, from the sum of squares of its scaled gradients. Clipping: torch.nn.utils.clip_grad_norm_.
LATHE_BOTH inline void settle(const StepRequest& r, double sum, const float* loss, StepControl& c, ScaleState* scale) {
  const double loss_scale = scale != nullptr ? static_cast<double>(scale->scale) : 1.0;
  const bool found_inf = !std::isfinite(sum) || (loss != nullptr && !std::isfinite(*loss));
  c.loss_scale = loss_scale;
  c.grad_norm = std::sqrt(sum) / loss_scale;
  const double clip = r.clip > 0 ? r.clip / (c.grad_norm + 1e-6) : 1.0;
  c.grad_scale = (clip < 1 ? clip : 1.0) / loss_scale;
  c.moved = c.lost = 0;
  c.skip = found_inf || c.failed_step != 0;
  if (c.failed_step != 0) return;
  if (scale != nullptr ? move_scale(*scale, r.policy, found_inf) : found_inf) c.failed_step = r.step + 1;
  if (c.skip) return;
  ++c.updates;
  const auto t = static_cast<double>(c.updates);
  c.correction1 = 1 - std::pow(r.rule.beta1, t);
  c.correction2 = std::sqrt(1 - std::pow(r.rule.beta2, t));
}

/// A rule's constants in the type that a parameter is computed in.
template <class T>
struct Coefficients {
  T lr, decay, grad_scale, wd, beta1, one_beta1, beta2, one_beta2, eps, momentum, one_dampening, alpha, one_alpha,
      correction2;
  bool first, nesterov;

  LATHE_BOTH Coefficients(const UpdateRule& r, double weight_decay, const StepControl& c)
      : lr(static_cast<T>(r.lr)),
        decay(static_cast<T>(1 - r.lr * weight_decay)),
        grad_scale(static_cast<T>(c.grad_scale)),
        wd(static_cast<T>(r.kind == UpdateKind::adamw ? 0.0 : weight_decay)),
        beta1(static_cast<T>(r.beta1)),
        one_beta1(static_cast<T>(1 - r.beta1)),
        beta2(static_cast<T>(r.beta2)),
        one_beta2(static_cast<T>(1 - r.beta2)),
        eps(static_cast<T>(r.eps)),
        momentum(static_cast<T>(r.momentum)),
        one_dampening(static_cast<T>(1 - r.dampening)),
        alpha(static_cast<T>(r.alpha)),
        one_alpha(static_cast<T>(1 - r.alpha)),
        correction2(static_cast<T>(c.correction2)),
        first(c.updates == 1),
        nesterov(r.nesterov) {
    if (r.kind == UpdateKind::adagrad)
      lr = static_cast<T>(r.lr / (1 + static_cast<double>(c.updates - 1) * r.lr_decay));
    if (r.kind == UpdateKind::adam || r.kind == UpdateKind::adamw) lr = static_cast<T>(r.lr / c.correction1);
  }
};

/// One element. p: parameter, g: gradient as stored, s0 s1 s2: its state. Everywhere but in AdamW, weight decay is
/// added to the gradient first: g = grad_scale g + wd p. Each update is torch.optim's.
template <UpdateKind K, class T>
LATHE_BOTH inline T update_element(T p, T g, T* s0, T* s1, T* s2, const Coefficients<T>& c) {
  g = g * c.grad_scale + c.wd * p;
  if constexpr (K == UpdateKind::sgd) {
    // p -= lr g
    return p - c.lr * g;
  } else if constexpr (K == UpdateKind::momentum) {
    // v = momentum v + (1 - dampening) g (v = g at first);  p -= lr v, Nesterov: p -= lr (g + momentum v)
    // Polyak 1964; Sutskever et al. 2013
    *s0 = c.first ? g : c.momentum * *s0 + c.one_dampening * g;
    return p - c.lr * (c.nesterov ? g + c.momentum * *s0 : *s0);
  } else if constexpr (K == UpdateKind::adagrad) {
    // sum += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(sum) + eps). Duchi, Hazan and Singer 2011
    *s0 += g * g;
    return p - c.lr * (g / (std::sqrt(*s0) + c.eps));
  } else if constexpr (K == UpdateKind::rmsprop) {
    // q = alpha q + (1 - alpha) g^2;  d = sqrt(q) + eps, centered: sqrt(q - avg(g)^2) + eps;  p -= lr g / d, with
    // momentum: v = momentum v + g / d, p -= lr v. Tieleman and Hinton 2012; Graves 2013
    *s0 = c.alpha * *s0 + c.one_alpha * g * g;
    T variance = *s0;
    if (s2 != nullptr) {
      *s2 += c.one_alpha * (g - *s2);
      variance -= *s2 * *s2;
      if (variance < 0) variance = 0;  // rounding of a difference of near numbers; torch takes the root as it is
    }
    const T d = std::sqrt(variance) + c.eps;
    if (s1 == nullptr) return p - c.lr * (g / d);
    *s1 = c.momentum * *s1 + g / d;
    return p - c.lr * *s1;
  } else {
    // m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    // p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps). Kingma and Ba 2015
    // AdamW: p -= lr wd p first. Loshchilov and Hutter 2019
    if constexpr (K == UpdateKind::adamw) p *= c.decay;
    *s0 = c.beta1 * *s0 + c.one_beta1 * g;
    *s1 = c.beta2 * *s1 + c.one_beta2 * g * g;
    return p - c.lr * (*s0 / (std::sqrt(*s1) / c.correction2 + c.eps));
  }
}

/// Calls f with the kind as a constant: an std::integral_constant.
template <class F>
void with_kind(UpdateKind kind, F&& f) {
  switch (kind) {
    case UpdateKind::sgd: return f(std::integral_constant<UpdateKind, UpdateKind::sgd>{});
    case UpdateKind::momentum: return f(std::integral_constant<UpdateKind, UpdateKind::momentum>{});
    case UpdateKind::adagrad: return f(std::integral_constant<UpdateKind, UpdateKind::adagrad>{});
    case UpdateKind::rmsprop: return f(std::integral_constant<UpdateKind, UpdateKind::rmsprop>{});
    case UpdateKind::adam: return f(std::integral_constant<UpdateKind, UpdateKind::adam>{});
    case UpdateKind::adamw: return f(std::integral_constant<UpdateKind, UpdateKind::adamw>{});
  }
}

/// bits of a float32, kept to bfloat16's upper half after adding `random` below it: up with the odds of the distance.
LATHE_BOTH inline uint16_t round_stochastic(uint32_t bits, uint32_t random16) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return static_cast<uint16_t>((bits + (finite ? random16 : 0)) >> 16);
}

/// The 16 random bits of element i out of its Philox block i / 8.
template <class Words>
LATHE_BOTH inline uint32_t random16(const Words& words, int64_t i) {
  return (words[(i % 8) / 2] >> (16 * (i % 2))) & 0xffffu;
}

}  // namespace lathe
