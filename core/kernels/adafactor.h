// Declares Adafactor (Shazeer and Stern 2018, algorithms 4 and 5) without momentum. g is the
// gradient of a parameter p. For a matrix [rows, columns], with x = g^2 + 1e-30:
//  r = b r + (1 - b) mean of x over columns;  c = b c + (1 - b) mean of x over rows
//  v = r c / mean(r);  u = g / sqrt(v);  scale = 1 / max(1, RMS(u) / d) times the caller's factors
//  p = (1 - lr wd) p - lr scale u
// A parameter that is not a matrix is not factored: v = b v + (1 - b) x. d is the clipping
// threshold of the paper. Weight decay (wd) is decoupled, as in torch.optim.Adafactor.
#pragma once

#include "core/kernels/update.h"

namespace lathe {

/// The arguments of an update. state[0] is r [rows] and state[1] is c [columns]. If the parameter
/// is not factored, `rows` is 0 and state[0] is v [n].
struct AdafactorArgs {
  UpdateArgs update;
  int64_t rows = 0, columns = 0;
  double decay = 0;  ///< b in the formulas above
};

/// Updates r for rows [begin, end), and adds the sums of x over these rows to `columns`, which has
/// an element for each column. For a parameter that is not factored, updates v for elements [begin,
/// end). Returns the sum of squares of p over these rows or elements.
double adafactor_moments_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                             const StepControl& control, int64_t begin, int64_t end,
                             double* columns);
/// Updates c from the sums in `columns`, and computes the factors by which g is multiplied to give
/// u: row_factors = 1 / sqrt(r / mean(r)) and column_factors = 1 / sqrt(c).
void adafactor_factors_cpu(const AdafactorArgs& args, const double* columns, double* row_factors,
                           double* column_factors);
/// Returns the sum of squares of u over rows or elements [begin, end). row_factors and
/// column_factors are null for a parameter that is not factored.
double adafactor_direction_cpu(const AdafactorArgs& args, const UpdateRule& rule,
                               const StepControl& control, int64_t begin, int64_t end,
                               const double* row_factors, const double* column_factors);
/// Sets p = (1 - lr wd) p - lr scale u for rows or elements [begin, end).
void adafactor_update_cpu(const AdafactorArgs& args, const UpdateRule& rule, StepControl* control,
                          int64_t begin, int64_t end, const double* row_factors,
                          const double* column_factors, double scale);

}  // namespace lathe
