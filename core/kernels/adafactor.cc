#include "core/kernels/adafactor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/adafactor.cc"
#include "hwy/foreach_target.h"
// Highway requires this include after foreach_target.h.
#include "hwy/highway.h"
// This include must follow hwy/highway.h.
#include "core/kernels/update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe::HWY_NAMESPACE {
namespace {

constexpr double least = 1e-30;  // epsilon_1 of the paper

/// Divides rows [begin, end) into blocks of up to update_block elements. A block is within one row.
/// Calls f(at, n, row, column) for each block, where n is the number of its elements, `at` is the
/// index of its first element, and `row` and `column` are the position of its first element.
template <class F>
void each_block(const AdafactorArgs& a, int64_t begin, int64_t end, F&& f) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t column = 0; column < a.columns; column += update_block)
      f(row * a.columns + column, std::min(update_block, a.columns - column), row, column);
  }
}

template <class T>
double moments(const AdafactorArgs& f, const UpdateRule& rule, const StepControl& control,
               int64_t begin, int64_t end, double* columns) {
  const UpdateArgs& a = f.update;
  const double scale = grad_scale_of(rule, a, control), b = f.decay, rest = 1 - f.decay;
  T grads[update_block], params[update_block];
  double x[update_block], sum = 0;

  const auto squares = [&](int64_t at, int64_t n) {
    const T* g = load_gradient(a, rule, control, at, n, grads);
    for (int64_t i = 0; i < n; ++i) {
      const double scaled = static_cast<double>(g[i]) * scale;
      x[i] = scaled * scaled + least;
    }
    const T* p = load(a.param, a.param_type, at, n, params);
    sum += lane_sum(
        n, [&](int64_t i) { return static_cast<double>(p[i]) * static_cast<double>(p[i]); });
  };

  // A parameter that is not factored has one moment for each element.
  T* moment = static_cast<T*>(a.state[0]);
  if (f.rows == 0) {
    for (int64_t at = begin; at < end; at += update_block) {
      const int64_t n = std::min(update_block, end - at);
      squares(at, n);
      for (int64_t i = 0; i < n; ++i)
        moment[at + i] = static_cast<T>(b * static_cast<double>(moment[at + i]) + rest * x[i]);
    }
    return sum;
  }

  // The parameter is factored. The mean of a row is complete after the row's last block. The sums
  // of the columns are returned to the caller, since other ranges of rows also add to them.
  double row_sum = 0;
  each_block(f, begin, end, [&](int64_t at, int64_t n, int64_t row, int64_t column) {
    squares(at, n);
    for (int64_t i = 0; i < n; ++i) columns[column + i] += x[i];
    row_sum = (column == 0 ? 0 : row_sum) + lane_sum(n, [&](int64_t i) { return x[i]; });
    if (column + n < f.columns) return;
    const double mean = row_sum / static_cast<double>(f.columns);
    moment[row] = static_cast<T>(b * static_cast<double>(moment[row]) + rest * mean);
  });
  return sum;
}

template <class T>
void factors(const AdafactorArgs& f, const double* columns, double* row_factors,
             double* column_factors) {
  const T* r = static_cast<const T*>(f.update.state[0]);
  T* c = static_cast<T*>(f.update.state[1]);
  const double rows = static_cast<double>(f.rows);
  const double mean = lane_sum(f.rows, [&](int64_t i) { return static_cast<double>(r[i]); }) / rows;
  for (int64_t i = 0; i < f.rows; ++i)
    row_factors[i] = 1 / std::sqrt(static_cast<double>(r[i]) / mean);
  for (int64_t i = 0; i < f.columns; ++i) {
    c[i] = static_cast<T>(f.decay * static_cast<double>(c[i]) + (1 - f.decay) * columns[i] / rows);
    column_factors[i] = 1 / std::sqrt(static_cast<double>(c[i]));
  }
}

/// Computes u for n elements of a row, or for n elements of a parameter that is not factored.
template <class T>
void direction(const AdafactorArgs& f, const UpdateRule& rule, const StepControl& control,
               int64_t at, int64_t n, int64_t row, int64_t column, const double* row_factors,
               const double* column_factors, T* buffer, double* u) {
  const double scale = grad_scale_of(rule, f.update, control);
  const T* g = load_gradient(f.update, rule, control, at, n, buffer);
  if (f.rows == 0) {
    const T* v = static_cast<const T*>(f.update.state[0]) + at;
    for (int64_t i = 0; i < n; ++i)
      u[i] = static_cast<double>(g[i]) * scale / std::sqrt(static_cast<double>(v[i]));
    return;
  }
  const double factor = scale * row_factors[row];
  for (int64_t i = 0; i < n; ++i)
    u[i] = static_cast<double>(g[i]) * factor * column_factors[column + i];
}

template <class T>
double direction_sum(const AdafactorArgs& f, const UpdateRule& rule, const StepControl& control,
                     int64_t begin, int64_t end, const double* row_factors,
                     const double* column_factors) {
  T buffer[update_block];
  double u[update_block], sum = 0;
  const auto add = [&](int64_t at, int64_t n, int64_t row, int64_t column) {
    direction(f, rule, control, at, n, row, column, row_factors, column_factors, buffer, u);
    sum += lane_sum(n, [&](int64_t i) { return u[i] * u[i]; });
  };
  if (f.rows > 0)
    each_block(f, begin, end, add);
  else
    for (int64_t at = begin; at < end; at += update_block)
      add(at, std::min(update_block, end - at), 0, 0);
  return sum;
}

template <class T>
void update(const AdafactorArgs& f, const UpdateRule& rule, StepControl* control, int64_t begin,
            int64_t end, const double* row_factors, const double* column_factors, double scale) {
  const double lr = rule.lr * f.update.lr_scale, decay = 1 - lr * f.update.weight_decay,
               step = lr * scale;
  T buffer[update_block];
  double u[update_block];
  const auto move = [&](int64_t row) {
    return [&, row](int64_t at, int64_t n, const T* p, T* out) {
      direction(f, rule, *control, at, n, row, at - row * f.columns, row_factors, column_factors,
                buffer, u);
      for (int64_t i = 0; i < n; ++i)
        out[i] = static_cast<T>(decay * static_cast<double>(p[i]) - step * u[i]);
    };
  };
  if (f.rows == 0) return update_blocks<T>(f.update, rule, control, begin, end, move(0));
  for (int64_t row = begin; row < end; ++row)
    update_blocks<T>(f.update, rule, control, row * f.columns, (row + 1) * f.columns, move(row));
}

}  // namespace

double adafactor_moments(const AdafactorArgs& a, const UpdateRule& rule, const StepControl& control,
                         int64_t begin, int64_t end, double* columns) {
  return a.update.param_type == Element::f64
             ? moments<double>(a, rule, control, begin, end, columns)
             : moments<float>(a, rule, control, begin, end, columns);
}

void adafactor_factors(const AdafactorArgs& a, const double* columns, double* row_factors,
                       double* column_factors) {
  (a.update.param_type == Element::f64 ? factors<double> : factors<float>)(a, columns, row_factors,
                                                                           column_factors);
}

double adafactor_direction(const AdafactorArgs& a, const UpdateRule& rule,
                           const StepControl& control, int64_t begin, int64_t end,
                           const double* row_factors, const double* column_factors) {
  return (a.update.param_type == Element::f64
              ? direction_sum<double>
              : direction_sum<float>)(a, rule, control, begin, end, row_factors, column_factors);
}

void adafactor_update(const AdafactorArgs& a, const UpdateRule& rule, StepControl* control,
                      int64_t begin, int64_t end, const double* row_factors,
                      const double* column_factors, double scale) {
  (a.update.param_type == Element::f64 ? update<double> : update<float>)(a, rule, control, begin,
                                                                         end, row_factors,
                                                                         column_factors, scale);
}

}  // namespace lathe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(adafactor_moments);
HWY_EXPORT(adafactor_factors);
HWY_EXPORT(adafactor_direction);
HWY_EXPORT(adafactor_update);

double adafactor_moments_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                             const StepControl& control, int64_t begin, int64_t end,
                             double* columns) {
  return HWY_DYNAMIC_DISPATCH(adafactor_moments)(args, rule, control, begin, end, columns);
}

void adafactor_factors_cpu(const AdafactorArgs& args, const double* columns, double* row_factors,
                           double* column_factors) {
  HWY_DYNAMIC_DISPATCH(adafactor_factors)(args, columns, row_factors, column_factors);
}

double adafactor_direction_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                               const StepControl& control, int64_t begin, int64_t end,
                               const double* row_factors, const double* column_factors) {
  return HWY_DYNAMIC_DISPATCH(adafactor_direction)(args, rule, control, begin, end, row_factors,
                                                   column_factors);
}

void adafactor_update_cpu(const AdafactorArgs& args, const UpdateRule& rule, StepControl* control,
                          int64_t begin, int64_t end, const double* row_factors,
                          const double* column_factors, double scale) {
  HWY_DYNAMIC_DISPATCH(adafactor_update)(args, rule, control, begin, end, row_factors,
                                         column_factors, scale);
}

}  // namespace lathe
#endif
