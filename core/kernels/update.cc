#include "core/kernels/update.h"

#include <numeric>

// The loops of this file are plain loops, which are compiled once for each instruction set. The
// compiler vectorizes them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/update.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"
// This include must follow hwy/highway.h.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {

double grad_sum_range(const void* grad, Element type, int64_t begin, int64_t end) {
  constexpr int64_t lanes = 16;  // independent sums, so that the compiler can vectorize the loop
  double sum[lanes] = {};

  // Each element has a fixed lane, even in the incomplete last vector, so the order of additions
  // depends only on the range.
  const auto add = [&](const auto* g, int64_t n, auto value) {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int64_t j = 0; j < lanes; ++j) {
        const double x = value(g[i + j]);
        sum[j] += x * x;
      }
    }
    for (; i < n; ++i) sum[i % lanes] += value(g[i]) * value(g[i]);
  };

  switch (type) {
    case Element::f64:
      add(static_cast<const double*>(grad) + begin, end - begin, [](double x) { return x; });
      break;
    case Element::f32:
      add(static_cast<const float*>(grad) + begin, end - begin,
          [](float x) { return static_cast<double>(x); });
      break;
    case Element::bf16:
      add(static_cast<const uint16_t*>(grad) + begin, end - begin, [](uint16_t x) {
        return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(x) << 16));
      });
      break;
    case Element::f16:
      add(static_cast<const c10::Half*>(grad) + begin, end - begin,
          [](c10::Half x) { return static_cast<double>(static_cast<float>(x)); });
      break;
  }

  // Add the lanes in order.
  double total = 0;
  for (double s : sum) total += s;
  return total;
}

void update_range(const UpdateArgs& args, const UpdateRule& rule, StepControl* control,
                  int64_t begin, int64_t end) {
  with_rule(rule.kind, [&](auto r) {
    using Rule = decltype(r);
    if (args.param_type == Element::f64)
      update_by_rule<Rule, double>(args, rule, control, begin, end);
    else
      update_by_rule<Rule, float>(args, rule, control, begin, end);
  });
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(grad_sum_range);
HWY_EXPORT(update_range);

double grad_sum_cpu(const void* grad, Element type, int64_t begin, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(grad_sum_range)(grad, type, begin, end);
}

namespace {
/// Adds up partial sums in their order.
double total_of(const double* partials, int64_t n) {
  return std::accumulate(partials, partials + n, 0.0);
}
}  // namespace

void decide_cpu(const StepRequest& request, const double* partials, int64_t n, const float* loss,
                StepControl* control, ScaleState* scale) {
  settle(request, total_of(partials, n), loss, *control, scale);
}

void decide_gradient_cpu(const double* partials, int64_t n, StepControl* control) {
  settle_gradient(total_of(partials, n), *control);
}

void end_stages_cpu(int64_t step, const double* partials, int64_t n, const float* loss,
                    StepControl* control) {
  settle_stages(step, total_of(partials, n), loss, *control);
}

void update_cpu(const UpdateArgs& args, const UpdateRule& rule, StepControl* control, int64_t begin,
                int64_t end) {
  if (control->skip == 0) HWY_DYNAMIC_DISPATCH(update_range)(args, rule, control, begin, end);
}

}  // namespace lathe
#endif
