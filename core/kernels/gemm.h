// Matrix products in blocks that stay in a core's cache, on the brgemm kernels of LibTorch's oneDNN
// (at::native::cpublas::brgemm, a GEMM over a batch of blocks). Factors are packed a panel at a
// time when they are used. Sums are in float32, each in one fixed order, so that results are the
// same bits on any number of threads. Both factors are float32, bfloat16 or float16; m, n and k are
// above 0.
//
// bfloat16 is multiplied directly if that is faster than float32 (AMX; AVX512_BF16 except on Intel,
// see isa.h). Otherwise, and in float16, factors are widened to float32 on their way into the
// cache, multiplied there, and results are rounded once when they are stored: memory stays small,
// and a matmul takes hardly longer than in float32.
//
//   result   a task is a panel of 64 columns x a part of the rows; a block is 32 rows of it:
//
//                    panel   panel   panel            (b: packed once a task, k x 64, at most 768
//                                                      or 1024 deep)
//                  +-------+-------+-------+
//            part  | block |       |       |          (a: 32 rows x k, read where they are)
//                  | block |       |       |
//                  +-------+-------+-------+
//            part  |       |       |       |          (a block: brgemm over k, then the epilogue
//                                                      while it is in cache)
//                  +-------+-------+-------+
//
// Left factors that must be widened to float32 are converted one block of rows at a time, and again
// for each panel, which takes 5% of the matmul's time.
#pragma once

#include <cstdint>
#include <span>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Returns whether matmuls of this type are possible here: from AVX2 on (core/kernels/isa.h, and
/// oneDNN's ONEDNN_MAX_CPU_ISA); float16 not on CPUs whose AMX multiplies it.
bool gemm_possible(Element type);
/// Returns whether ops use these kernels: gemm_possible() unless use_kernels(false) was called.
bool gemm_ready(Element type);
/// Returns the type in which `type` is multiplied: bfloat16 directly if multiplies_bf16(),
/// otherwise float32.
Element multiplied_as(Element type);
/// Sets whether ops use these kernels for the types for which gemm_possible() returns true (the
/// default), or always use ATen's kernels. Not thread-safe.
void use_kernels(bool on);
/// Returns the value that use_kernels() set; true by default.
bool kernels_wanted();
/// Returns the instruction set that Highway chose for the vector loops: "AVX3" (AVX-512), "AVX2",
/// "NEON", ...
const char* vector_set();

// Factors of two types, one of which must be float32, are multiplied in float32.

/// a [m, k] times b [k, n].
struct Product {
  Matrix a, b;
  int64_t k;
};
/// Computes the sum of products [m, n], all of one pair of types, then `e`.
void gemm(std::span<const Product> products, int64_t m, int64_t n, const Epilogue& e);
inline void gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  gemm({{{a, b, k}}}, m, n, e);
}
/// Computes a [m, k] times the transpose of b [n, k], then `e`.
void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// A left factor [k, m] of a matmul, and the epilogue of its result [m, n]. column_sums [m], if not
/// null, receives the sums of a's columns.
struct LeftFactor {
  Matrix a;
  int64_t m;
  Epilogue e;
  float* column_sums = nullptr;
};
/// Computes the transpose of each left factor, all of one type, times b [k, n].
void gemm_tn(std::span<const LeftFactor> lefts, Matrix b, int64_t n, int64_t k);
inline void gemm_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e,
                    float* column_sums = nullptr) {
  gemm_tn({{{a, m, e, column_sums}}}, b, n, k);
}

/// Computes c [m, n] (+)= a b, one block on this thread: a [m, k] row-major, b packed as a right
/// factor or, in float32, row-major. Both have a type that is multiplied directly; k is even in
/// bfloat16.
void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride,
                bool add);
/// Releases the calling thread's state of oneDNN. Each thread that called block_gemm() must call
/// this after its last call for a type.
void release_gemm(Element type);

}  // namespace lathe
