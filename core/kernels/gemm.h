// Matrix products in blocks that stay in a core's cache, on the brgemm kernels of LibTorch's oneDNN
// (at::native::cpublas::brgemm, a GEMM over a batch of blocks). Factors are packed one panel at a
// time, right before use. Sums are in float32, each in one fixed order, so that results have the
// same bits on any number of threads. Both factors are float32, bfloat16 or float16; m, n and k are
// above 0.
//
// bfloat16 factors are multiplied directly if that is faster than in float32 (with AMX, or with
// AVX512_BF16 except on Intel, see isa.h). Otherwise, and always for float16, blocks of the factors
// are converted to float32 as they are packed, and results are rounded once when they are stored.
// This takes little memory, and a matmul takes hardly longer than in float32.
//
//   The result: a task computes a part of the rows of a panel of 64 columns, in blocks of 32 rows.
//
//                    panel   panel   panel            (b: each task packs its panel, k x 64, in
//                                                      sections of at most 768 or 1024 rows)
//                  +-------+-------+-------+
//            part  | block |       |       |          (a: 32 rows x k, read where they are)
//                  | block |       |       |
//                  +-------+-------+-------+
//            part  |       |       |       |          (a block: brgemm over k, then the epilogue
//                                                      while it is in cache)
//                  +-------+-------+-------+
//
// Left factors that must be converted to float32 are converted one block of rows at a time, and
// again for each panel. This takes 5% of the matmul's time.
#pragma once

#include <cstdint>
#include <span>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Returns whether these kernels can multiply matrices of this type on this machine. They need at
/// least AVX2, which LATHE_ISA (core/kernels/isa.h) and oneDNN's ONEDNN_MAX_CPU_ISA must permit.
/// They don't take float64, nor float16 on CPUs whose AMX multiplies float16.
bool gemm_possible(Element type);
/// Returns whether ops use these kernels: gemm_possible() unless use_kernels(false) was called.
bool gemm_ready(Element type);
/// Returns the type in which `type` is multiplied: bfloat16 directly if multiplies_bf16(),
/// otherwise float32.
Element multiplied_as(Element type);
/// Sets whether ops use Lathe's kernels for the types for which gemm_possible() returns true. If
/// not, ops always use ATen's kernels. Not thread-safe.
void use_kernels(bool on);
/// Returns the value that use_kernels() set; true by default.
bool kernels_enabled();
/// Returns the instruction set that Highway chose for the vector loops: "AVX3" (AVX-512), "AVX2",
/// "NEON", ...
const char* vector_set();

// The two factors of a product may have different types if one of them is float32. They are then
// multiplied in float32.

/// A product of a [m, k] and b [k, n].
struct Product {
  Matrix a, b;
  int64_t k;
};
/// Computes the sum of products [m, n], then applies `e`. All products must have the same pair of
/// types.
void gemm(std::span<const Product> products, int64_t m, int64_t n, const Epilogue& e);
inline void gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  gemm({{{a, b, k}}}, m, n, e);
}
/// Computes a [m, k] times the transpose of b [n, k], then applies `e`.
void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// A left factor a [k, m] of a matmul, and the epilogue e of its result [m, n]. column_sums [m], if
/// not null, receives the sums of a's columns.
struct LeftFactor {
  Matrix a;
  int64_t m;
  Epilogue e;
  float* column_sums = nullptr;
};
/// Computes the transpose of each left factor times b [k, n]. All left factors must have one type.
void gemm_tn(std::span<const LeftFactor> lefts, Matrix b, int64_t n, int64_t k);
inline void gemm_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e,
                    float* column_sums = nullptr) {
  gemm_tn({{{a, m, e, column_sums}}}, b, n, k);
}

/// Computes c = a b, or adds a b to c if `add` is true, on the calling thread. c is a block [m, n]
/// whose rows are c_stride apart. a [m, k] is row-major, and b is packed as a right factor or, in
/// float32, row-major. Both must have a type that is multiplied directly. In bfloat16, k must be
/// even.
void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride,
                bool add);
/// Releases oneDNN's state of the calling thread. Each thread that called block_gemm() must call
/// this function after its last call for a type.
void release_gemm(Element type);

}  // namespace lathe
