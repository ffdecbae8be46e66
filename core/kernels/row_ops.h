// Declares sums of the rows of a matrix, softmax, and log softmax. Each row is computed separately,
// in an order that depends only on its length and on the instruction set. The result for a row
// therefore has the same bits on any thread, whatever the other rows are.
#pragma once

#include <cstdint>

namespace lathe {

/// Writes the sum of each row of x [rows, columns] to y [rows], on the calling thread. The rows are
/// `stride` elements apart.
void sum_rows(const float* x, int64_t stride, int64_t rows, int64_t columns, float* y);

/// Writes the softmax of each row of x [rows, columns] to y, which has the same shape, on the
/// calling thread. y may be x. Exponentials below e^-87 are rounded to 0.
void softmax_rows(const float* x, int64_t rows, int64_t columns, float* y);

/// Writes the gradient dx = y (dy - sum(y dy)) of x, where y = softmax(x) and dy is the gradient of
/// y, on the calling thread. dx may be dy or y.
void softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                           float* dx);

/// Writes log(softmax(x)) of each row of x [rows, columns] to y, which has the same shape, on the
/// calling thread. y may be x.
void log_softmax_rows(const float* x, int64_t rows, int64_t columns, float* y);

/// Writes the gradient dx = dy - e^y sum(dy) of x, where y = log(softmax(x)) and dy is the gradient
/// of y, on the calling thread. dx may be dy or y.
void log_softmax_rows_gradient(const float* dy, const float* y, int64_t rows, int64_t columns,
                               float* dx);

}  // namespace lathe
