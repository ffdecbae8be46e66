// Which instructions the CPU kernels use: those that the machine has, or fewer where the
// environment's LATHE_ISA says so, so that every path can be run, timed and tested on any machine
// that has more.
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// Each includes those before it. Other CPUs than x86 are `baseline`: their vector loops are
/// Highway's, their products ATen's.
enum class Isa { baseline, avx2, avx512, avx512_bf16, amx };

/// "baseline", "avx2", "avx512", "avx512_bf16", "amx".
const char* isa_name(Isa isa);
/// The most that this machine has.
Isa machine_isa();
/// Whether that is AMX with products of float16.
bool has_amx_fp16();
namespace detail {
extern Isa isa_in_use;
extern bool multiplies_bf16;
}  // namespace detail
/// What kernels use now. A plain load, since vector loops ask at each store.
inline Isa active_isa() { return detail::isa_in_use; }
/// Whether products of bfloat16 numbers take its own instructions. Where the machine has
/// AVX512_BF16 and no AMX that is left alone on Intel's processors, which multiply as many float32
/// numbers in the same time (VDPBF16PS has half the rate of VFMADD there), unless `use_isa` was
/// called; AMD's multiply twice as many.
inline bool multiplies_bf16() { return detail::multiplies_bf16; }
/// Makes kernels use `isa`, which the machine must have. Not thread-safe. oneDNN's small products
/// and ATen's kernels stay as they are once they have run.
void use_isa(Isa isa);
/// Does what LATHE_ISA says, for oneDNN and ATen too; Exit::usage where it names what there is not.
/// Call before the first tensor is computed with; once is enough.
void read_isa_from_environment();

}  // namespace lathe
