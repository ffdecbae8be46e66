// Matrix products in blocks that stay in a core's cache, on the small-product kernels of LibTorch's
// oneDNN (at::native::cpublas::brgemm, a GEMM over a batch of blocks). Factors are packed a panel
// at a time where they are used; sums are in float32, each in one fixed order, so that results are
// the same bits on any number of threads. Both factors float32, bfloat16 or float16; m, n and k are
// above 0.
//
// bfloat16 is multiplied as it is where that is quicker than float32 (AMX; AVX512_BF16 but for
// Intel's, see isa.h). Elsewhere, and in float16, factors are widened to float32 on their way into
// the cache, multiplied there, and results rounded once as they leave: what lies in memory stays
// small, and a product takes hardly longer than float32's.
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
// The path of a narrow dtype without instructions packs left factors one block of rows at a
// time, again for each panel: 5% of the product's time.
#pragma once

#include <cstdint>
#include <span>

#include "core/kernels/epilogue.h"
#include "core/kernels/pack.h"

namespace lathe {

/// Whether products of this type are taken here: from AVX2 on (core/kernels/isa.h, and oneDNN's
/// ONEDNN_MAX_CPU_ISA); float16 not on CPUs whose AMX multiplies it.
bool gemm_possible(Element type);
/// The same, and false after use_kernels(false): what ops go by.
bool gemm_ready(Element type);
/// The type that products of `type` are multiplied in: bfloat16 as it is where multiplies_bf16()
/// says so, else float32.
Element multiplied_as(Element type);
/// Whether ops take these kernels where gemm_ready() allows (the default), or ATen's throughout.
/// Not thread-safe.
void use_kernels(bool on);
bool kernels_wanted();
/// The instruction set that Highway chose for the vector loops: "AVX3" (AVX-512), "AVX2", "NEON",
/// ...
const char* vector_set();

// Factors of two types, one of them float32, are multiplied in float32.

/// a [m, k] times b [k, n].
struct Product {
  Matrix a, b;
  int64_t k;
};
/// The sum of products [m, n], of one pair of types, then `e`.
void gemm(std::span<const Product> products, int64_t m, int64_t n, const Epilogue& e);
inline void gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e) {
  gemm({{{a, b, k}}}, m, n, e);
}
/// a [m, k] times the transpose of b [n, k], then `e`.
void gemm_nt(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e);
/// One of the left factors of a product, [k, m], and what is done to its result [m, n]; column_sums
/// [m], where given, takes the sums of a's columns.
struct LeftFactor {
  Matrix a;
  int64_t m;
  Epilogue e;
  float* column_sums = nullptr;
};
/// The transpose of each left factor, of one type, times b [k, n].
void gemm_tn(std::span<const LeftFactor> lefts, Matrix b, int64_t n, int64_t k);
inline void gemm_tn(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, const Epilogue& e,
                    float* column_sums = nullptr) {
  gemm_tn({{{a, m, e, column_sums}}}, b, n, k);
}

/// c [m, n] (+)= a b, one block on this thread: a [m, k] row-major, b packed as a right factor or,
/// in float32, row-major. Both of a type that is multiplied as it is; k is even in bfloat16.
void block_gemm(Matrix a, Matrix b, int64_t m, int64_t n, int64_t k, float* c, int64_t c_stride,
                bool add);
/// To be called by a thread when it is done with small products of a type.
void release_gemm(Element type);

}  // namespace lathe
