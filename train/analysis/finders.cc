#include "train/analysis/finders.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "autograd/node.h"
#include "train/session/passes.h"
#include "train/step/stepper.h"

namespace lathe {
namespace {

/// Returns the squared norm; 0 for an undefined tensor.
double squared_norm(const at::Tensor& t) {
  return t.defined() ? std::pow(t.to(at::kDouble).norm().item<double>(), 2) : 0;
}

}  // namespace

RangeTest lr_range_test(Session& s, const Data& data, double from, double to, int64_t steps) {
  // The test sets the rate of every step itself; a schedule would scale this rate.
  s.config.schedule.kind = "constant";
  s.config.schedule.warmup_steps = 0;
  s.spikes.reset();  // a skipped update would hide that the loss rises
  Loader loader = training_loader(s, data, 0);
  RangeTest test;
  double mean = 0, weight = 0;

  for (int64_t step = 0; step < steps; ++step) {
    // Rates are spaced evenly in the logarithm, because useful rates span several orders of
    // magnitude.
    const double share = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 0;
    s.config.optim.lr = from * std::pow(to / from, share);
    const StepResult result = run_step(s, loader, step);
    if (result.targets == 0) continue;  // such a batch has a loss of 0 at any learning rate
    const double loss = result.loss.item().toDouble();

    if (!std::isfinite(loss)) {
      test.diverged = s.config.optim.lr;
      break;
    }

    // Update the exponential mean of the losses. Division by the weight removes the bias of this
    // mean toward zero.
    constexpr double keep = 0.9;
    mean = keep * mean + (1 - keep) * loss;
    weight = keep * weight + (1 - keep);
    test.lr.push_back(s.config.optim.lr);
    test.loss.push_back(mean / weight);

    // Stop only at a clear divergence. read_range() then finds the step where the divergence began,
    // with a lower threshold.
    if (test.loss.back() > 2 * test.loss.front()) break;
  }

  read_range(test);
  return test;
}

void read_range(RangeTest& t) {
  const auto least = std::min_element(t.loss.begin(), t.loss.end());
  double best = 0;

  // Search only up to the lowest loss: beyond it, a falling loss is noise.
  for (size_t i = 2; std::cmp_less(i + 2, std::max<ptrdiff_t>(least - t.loss.begin() + 1, 0));
       ++i) {
    // Compute the derivative over log(rate) across four steps, which averages out noise.
    const double slope = (t.loss[i + 2] - t.loss[i - 2]) / std::log(t.lr[i + 2] / t.lr[i - 2]);
    if (slope < best) {
      best = slope;
      t.steepest = t.lr[i];
    }
  }

  // A rise after the lowest loss may be noise if it is less than 10% of the fall before it, or less
  // than 0.1% of the lowest loss.
  if (least != t.loss.end()) {
    const double rise = *std::max_element(least, t.loss.end()) - *least;
    const double noise = 0.1 * std::max(t.loss.front() - *least, 0.01 * std::fabs(*least));
    if (rise > noise || t.diverged > 0)
      t.lowest = t.lr[static_cast<size_t>(least - t.loss.begin())];
  }

  // Search only from the lowest loss on: a loss that rose before it, and then fell again, has not
  // diverged.
  for (auto i = least; i != t.loss.end() && t.diverged == 0; ++i) {
    if (*i > 1.1 * t.loss.front()) t.diverged = t.lr[static_cast<size_t>(i - t.loss.begin())];
  }
}

double NoiseScale::batch() const {
  return gradient > 0 ? std::max(0.0, noise) / gradient : std::numeric_limits<double>::quiet_NaN();
}

NoiseScale noise_scale(double small_norm, double large_norm, double small, double large) {
  // For both batch sizes B: E|g_B|^2 = |G|^2 + tr(S) / B, where G is the true gradient and S the
  // covariance of one sample's gradient.
  return {.gradient = (large * large_norm - small * small_norm) / (large - small),
          .noise = (small_norm - large_norm) / (1 / small - 1 / large)};
}

NoiseScale measure_noise(Session& s, const Data& data, int64_t parts, int64_t rounds) {
  Loader loader = training_loader(s, data, 0);
  double small = 0, large = 0;

  for (int64_t round = 0; round < rounds; ++round) {
    // Each part is a small batch; the sum over the parts of a round is one large batch.
    std::vector<at::Tensor> sums(s.params.size());
    for (int64_t part = 0; part < parts; ++part) {
      zero_grad(*s.model);
      const Batch batch = loader.next();
      const auto divisor = static_cast<double>(std::max<int64_t>(s.task.targets(batch), 1));
      run_micro_batch(s, batch, divisor, random_of(s.config, round, part), s.compute);
      for (size_t i = 0; i < sums.size(); ++i) {
        const at::Tensor& g = s.params[i].parameter.grad();
        if (!g.defined()) continue;

        small += squared_norm(g) / static_cast<double>(parts * rounds);
        // Copy the first gradient, so that the accumulated gradient does not share its memory.
        sums[i] = sums[i].defined() ? sums[i].add_(g)
                                    : g.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      }
    }

    // The large batch's gradient is the mean of its parts, hence the division by parts^2.
    for (const at::Tensor& sum : sums)
      large += squared_norm(sum) / static_cast<double>(parts * parts * rounds);
  }

  zero_grad(*s.model);
  const auto batch = static_cast<double>(s.config.train.batch_size);
  return noise_scale(small, large, batch, batch * static_cast<double>(parts));
}

}  // namespace lathe
