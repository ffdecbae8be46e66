// The instruction set of the CPU kernels: the machine's, or a smaller one set by LATHE_ISA in the
// environment. Every path can therefore be run, timed and tested on any machine that has more.
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// Each includes those before it. CPUs other than x86 are `baseline`: their vector loops are
/// Highway's, their matmuls ATen's.
enum class Isa { baseline, avx2, avx512, avx512_bf16, amx };

/// Returns "baseline", "avx2", "avx512", "avx512_bf16", "amx".
const char* isa_name(Isa isa);
/// Returns the largest set that this machine has.
Isa machine_isa();
/// Returns whether the machine has AMX that multiplies float16.
bool has_amx_fp16();
namespace detail {
extern Isa isa_in_use;
extern bool multiplies_bf16;
}  // namespace detail
/// Returns the set that kernels use now. It is a plain load, since vector loops call it at each
/// store.
inline Isa active_isa() { return detail::isa_in_use; }
/// Returns whether bfloat16 is multiplied by its own instructions. AVX512_BF16 without AMX is not
/// used on Intel's processors unless `use_isa` was called: VDPBF16PS has half the rate of VFMADD
/// there, so they multiply as many float32 numbers in the same time. AMD's multiply twice as many
/// bfloat16 numbers.
inline bool multiplies_bf16() { return detail::multiplies_bf16; }
/// Makes kernels use `isa`, which the machine must have. Not thread-safe. oneDNN's brgemm and
/// ATen's kernels don't change once they have run.
void use_isa(Isa isa);
/// Applies LATHE_ISA, for oneDNN and ATen too. Throws Exit::usage if it names a set that doesn't
/// exist or that the machine lacks. Call it before the first computation; once is enough.
void read_isa_from_environment();

}  // namespace lathe
