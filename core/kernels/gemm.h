// Declares matrix products, computed in blocks that stay in a core's cache, with the brgemm kernels
// of LibTorch's oneDNN (at::native::cpublas::brgemm, a GEMM over a batch of blocks). Right factors
// are packed one panel at a time, right before use, except that gemm_tn() packs all panels of a
// factor in bfloat16 first. Sums are accumulated in float32 in a fixed order, so results on
// different numbers of threads are bitwise equal. Both factors are float32, bfloat16 or float16; m,
// n and k are above 0.
//
// bfloat16 factors are multiplied directly if that is faster than in float32: on CPUs with AMX, and
// on CPUs that have AVX512_BF16 and are not Intel's (see isa.h). Otherwise, and always for float16,
// blocks of the factors are converted to float32 when they are packed, and results are rounded once
// when they are stored. This conversion takes little memory, and such a matmul takes hardly longer
// than one in float32.
//
//   The result of gemm() and gemm_nt(): a task computes a part of the rows of a panel of 64
//   columns, in blocks of 32 rows.
//
//                    panel   panel   panel            (b: each task packs its panel, k x 64, in
//                                                      sections of at most 768 or 1024 rows)
//                  +-------+-------+-------+
//            part  | block |       |       |          (a: 32 rows x k, read in place)
//                  | block |       |       |
//                  +-------+-------+-------+
//            part  |       |       |       |          (a block: brgemm over k, then the epilogue
//                                                      while it is in cache)
//                  +-------+-------+-------+
//
// Left factors that must be converted to float32 are converted one block of rows at a time, and
// again for each panel. This conversion takes 5% of the matmul's time.
#pragma once

#include <cstdint>
#include <span>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Returns whether these kernels can multiply matrices of this type on this machine. The kernels
/// need at least AVX2, which LATHE_ISA (core/kernels/isa.h) and oneDNN's ONEDNN_MAX_CPU_ISA must
/// permit. They don't support float64. On CPUs whose AMX multiplies float16, they don't support
/// float16 either.
bool gemm_possible(Element type);
/// Returns whether ops use these kernels: the value of gemm_possible(type), or false after
/// use_kernels(false).
bool gemm_ready(Element type);
/// Returns the type in which elements of `type` are multiplied: bfloat16 for bfloat16 if
/// multiplies_bf16() is true and oneDNN has a brgemm for bfloat16, otherwise float32.
Element multiplied_as(Element type);
/// Sets whether ops use Lathe's kernels for the types for which gemm_possible() returns true. If
/// `on` is false, ops always use ATen's kernels. Not thread-safe.
void use_kernels(bool on);
/// Returns the value that use_kernels() set; true by default.
bool kernels_enabled();
/// Returns the instruction set that Highway chose for the vector loops: "AVX3" (AVX-512), "AVX2",
/// "NEON", ...
const char* vector_set();

// The two factors of a product may have different types if one of the types is float32. Such
// factors are multiplied in float32.

/// A product of a [m, k] and b [k, n].
struct Product {
  Matrix a, b;
  int64_t k;
};
/// Computes the sum of the products [m, n], then applies `e`. The pair of factor types must be the
/// same in all products.
void gemm(std::span<const Product> products, int64_t m, int64_t n, const Epilogue& e);
inline void gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  gemm({{{a, b, k}}}, m, n, e);
}
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`.
void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// A left factor a [k, m] of a matmul, and the epilogue e of the matmul's result [m, n]. If
/// column_sums [m] is not null, it receives the sums of a's columns.
struct LeftFactor {
  Matrix a;
  int64_t m;
  Epilogue e;
  float* column_sums = nullptr;
};
/// Computes the transpose of each left factor times b [k, n]. All left factors must have the same
/// type.
void gemm_tn(std::span<const LeftFactor> lefts, Matrix b, int64_t n, int64_t k);
inline void gemm_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e,
                    float* column_sums = nullptr) {
  gemm_tn({{{a, m, e, column_sums}}}, b, n, k);
}

/// Computes c = a b, or adds a b to c if `add` is true, on the calling thread. c is a block [m, n]
/// whose rows are c_stride elements apart. a [m, k] is row-major. b is packed as a right factor;
/// for float32, this is the row-major order. The type of both factors must be one that is
/// multiplied directly. For bfloat16, k must be even.
void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride,
                bool add);
/// Releases oneDNN's state of the calling thread. Each thread that called block_gemm() must call
/// this function with the type of the factors after its last such call.
void release_gemm(Element type);

}  // namespace lathe
