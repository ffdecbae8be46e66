// Declares softmax cross-entropy over rows of logits. The function can replace the logits by their
// gradient. Also declares the scatter-add of an embedding's gradient.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// Sets losses[r] = -log softmax(logits[r])[targets[r]] for each row whose target is not `ignore`,
/// and losses[r] = 0 for other rows. If `gradient` is true, replaces the logits [rows, classes] by
/// weight * (softmax(logits) - onehot(target)), or by 0 in ignored rows, and sets the `padding`
/// elements after each row to 0. Targets other than `ignore` must be in [0, classes). This is not
/// checked.
void cross_entropy_rows(Matrix logits, int64_t rows, int64_t classes, int64_t padding,
                        const int64_t* targets, int64_t ignore, float weight, bool gradient,
                        float* losses);

/// Adds row i of values [n, columns] to row ids[i] of `table`, for each i < n. Rows with the same
/// id are first summed in float32, in order; then the sum is added to the table. Both matrices are
/// float32, bfloat16 or float16.
void scatter_add_rows(Matrix values, const int64_t* ids, int64_t n, int64_t columns, Matrix table);

}  // namespace lathe
