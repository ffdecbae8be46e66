// Linear layers by cuBLASLt, which applies bias, GELU and residual in the epilogue of the matrix
// product.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/linear_gpu.h"

namespace lathe {

/// Queues a matrix product on a stream. Returns false and writes nothing if cuBLASLt has no
/// algorithm for it; throws Exit::internal for other errors. cuBLASLt's heuristic chooses the
/// algorithm by shapes and types, and not by addresses or timing. The algorithm and the bits of the
/// result are therefore always the same for one kind of GPU and one version of cuBLASLt.
bool linear_product_cuda(const LinearProduct& product, cudaStream_t stream);

}  // namespace lathe
