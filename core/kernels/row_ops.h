// Sums of the rows of a matrix, softmax, and log softmax. Each row is computed on its own, in an
// order that depends only on its length and on the instruction set. A row therefore has the same
// bits on any thread and with any other rows.
#pragma once

#include <cstdint>

namespace lathe {

/// Writes the sum of each row of x [rows, columns] to y [rows], on the calling thread. The rows are
/// `stride` elements apart.
void sum_rows(const float* x, int64_t stride, int64_t rows, int64_t columns, float* y);

/// Writes the softmax of each row of x [rows, columns] to y of the same shape, on the calling
/// thread. y may be x. Exponentials below e^-87 are 0.
void softmax_rows(const float* x, int64_t rows, int64_t columns, float* y);

/// Writes the gradient of x to dx, given the gradient dy of y = softmax(x) and y itself, on the
/// calling thread: dx = y (dy - sum(y dy)). dx may be dy or y.
void softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                           float* dx);

/// Writes log(softmax(x)) for each row of x [rows, columns] to y of the same shape, on the calling
/// thread. y may be x.
void log_softmax_rows(const float* x, int64_t rows, int64_t columns, float* y);

/// Writes the gradient of x to dx, given the gradient dy of y = log(softmax(x)) and y itself, on
/// the calling thread: dx = dy - e^y sum(dy). dx may be dy or y.
void log_softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                               float* dx);

}  // namespace lathe
