// Linear layers by cuBLASLt, which applies bias, GELU and residual in the matrix product.
#pragma once

#include <cuda_runtime.h>

#include "core/kernels/linear_gpu.h"

namespace lathe {

/// Runs a product on a stream. Returns false, with nothing written, if cuBLASLt has no algorithm
/// for it. cuBLASLt's heuristic chooses the algorithm by the shape and the types, not by addresses
/// or timing, so it is always the same on one kind of GPU, and so are the bits.
bool linear_product_cuda(const LinearProduct& product, cudaStream_t stream);

}  // namespace lathe
