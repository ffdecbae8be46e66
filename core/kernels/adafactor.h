// Adafactor. Shazeer and Stern 2018, algorithms 4 and 5, without momentum. Of a matrix [rows,
// columns], with x = g^2 + 1e-30:
//   r = b r + (1 - b) mean of x over columns;  c = b c + (1 - b) mean of x over rows
//   v = r c / mean(r);  u = g / sqrt(v);  scale = 1 / max(1, RMS(u) / d), and what the caller adds
//   p = (1 - lr wd) p - lr scale u
// Any other parameter has v = b v + (1 - b) x. Weight decay is decoupled, as in
// torch.optim.Adafactor.
#pragma once

#include "core/kernels/update.h"

namespace lathe {

/// State 0: r [rows] and state 1: c [columns]; or state 0: v [n], where rows is 0.
struct AdafactorArgs {
  UpdateArgs update;
  int64_t rows = 0, columns = 0;
  double decay = 0;  ///< b
};

/// Of rows [begin, end), or of elements of a parameter that is not factored: moves r (or v), adds
/// the sum of x of each column to `columns` [columns], and returns the sum of squares of p.
double adafactor_moments_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                             const StepControl& control, int64_t begin, int64_t end,
                             double* columns);
/// c from the columns' sums, and what u is made with: factors 1 / sqrt(r / mean(r)) [rows] and 1 /
/// sqrt(c) [columns].
void adafactor_factors_cpu(const AdafactorArgs& args, const double* columns, double* row_factors,
                           double* column_factors);
/// The sum of squares of u; the factors of a parameter that is not factored are null.
double adafactor_direction_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                               const StepControl& control, int64_t begin, int64_t end,
                               const double* row_factors, const double* column_factors);
/// p = (1 - lr wd) p - lr scale u.
void adafactor_update_cpu(const AdafactorArgs& args, const UpdateRule& rule, StepControl* control,
                          int64_t begin, int64_t end, const double* row_factors,
                          const double* column_factors, double scale);

}  // namespace lathe
