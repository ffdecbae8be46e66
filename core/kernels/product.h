// Matrix products in blocks that stay in a core's cache, on the small-product kernels of LibTorch's oneDNN
// (at::native::cpublas::brgemm). Factors are packed a panel at a time where they are used; sums are in float32, each in
// one fixed order, so that results are the same bits on any number of threads. Both factors float32 or both bfloat16;
// m, n and k are above 0.
#pragma once

#include <cstdint>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Whether this machine's small-product kernels take the type: float32 from AVX2 on, bfloat16 with AVX512_BF16 or AMX
/// (unless ONEDNN_MAX_CPU_ISA in the environment forbids it).
bool product_possible(Element type);
/// The same, and false after use_kernels(false): what ops go by.
bool product_ready(Element type);
/// Whether ops take these kernels where product_ready() allows (the default), or ATen's throughout. Not thread-safe.
void use_kernels(bool on);
/// The instruction set that Highway chose for the vector loops: "AVX3" (AVX-512), "AVX2", "NEON", ...
const char* vector_set();

/// a [m, k] times b [k, n], then `e`.
void multiply(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// a [m, k] times the transpose of b [n, k], then `e`.
void multiply_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// The transpose of a [k, m] times b [k, n], then `e`; column_sums [m], where given, takes the sums of a's columns.
void multiply_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e, float* column_sums = nullptr);

/// c [m, n] (+)= a b, one block on this thread: a [m, k] row-major, b packed as a right factor or, in float32,
/// row-major. k is even in bfloat16.
void small_product(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride, bool add);
/// To be called by a thread when it is done with small products of a type.
void release_products(Element type);

}  // namespace lathe
