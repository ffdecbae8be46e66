// Softmax cross-entropy over rows of logits, in place, and the scatter-add of an embedding's
// gradient.
#pragma once

#include <cstdint>

#include "core/kernels/pack.h"

namespace lathe {

/// Sets losses[r] = -log softmax(logits[r])[target[r]] for a row whose target is not `ignore`,
/// otherwise 0. With `gradient`, logits become weight (softmax(logits) - onehot(target)), with 0 in
/// ignored rows and in the `padding` elements after each row. Targets other than `ignore` must be
/// in [0, classes): they are not checked.
void cross_entropy_rows(Matrix logits, int64_t rows, int64_t classes, int64_t padding,
                        const int64_t* targets, int64_t ignore, float weight, bool gradient,
                        float* losses);

/// Adds values[i] to table[ids[i]] for i < n, in rows of `columns`. Rows with the same id are
/// summed in float32, in order, and added once. Both are float32, bfloat16 or float16; values are
/// contiguous.
void scatter_add_rows(Matrix values, const int64_t* ids, int64_t n, int64_t columns, Matrix table);

}  // namespace lathe
