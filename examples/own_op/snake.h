// Declares the op snake(), an activation with a periodic part: Ziyin, Hartwig and Ueda 2020.
#pragma once

#include <lathe/autograd/variable.h>

/// Returns x + sin(a x)^2 / a for each element; a must not be 0. The op supports float32 and
/// float64 (float32 under autocast), and has no second derivatives.
lathe::Variable snake(const lathe::Variable& x, double a);

// These functions launch snake's CUDA kernels on the default stream. x, y, dy and dx are device
// pointers to n elements. If a launch fails, the functions throw std::runtime_error.
void snake_cuda(const float* x, float* y, int64_t n, double a);
void snake_cuda(const double* x, double* y, int64_t n, double a);
void snake_backward_cuda(const float* x, const float* dy, float* dx, int64_t n, double a);
void snake_backward_cuda(const double* x, const double* dy, double* dx, int64_t n, double a);
