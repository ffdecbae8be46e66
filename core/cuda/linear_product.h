// Declares linear layers that run on cuBLASLt. cuBLASLt applies bias, GELU and residual in the
// epilogue of the matrix product.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/linear_gpu.h"

namespace lathe {

/// Queues a matrix product on a stream. Returns false and writes nothing if cuBLASLt has no
/// algorithm for the product. Throws Exit::internal for other errors. cuBLASLt's heuristic chooses
/// the algorithm by shapes and types, and not by addresses or timing. With the same kind of GPU and
/// version of cuBLASLt, repeated calls therefore use the same algorithm and give bitwise equal
/// results.
bool linear_product_cuda(const LinearProduct& product, cudaStream_t stream);

}  // namespace lathe
