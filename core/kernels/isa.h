// The instruction set of the CPU kernels: the machine's, or a smaller one set by LATHE_ISA in the
// environment. The code for a smaller set can therefore be run, timed and tested on a machine with
// a larger set.
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// Instruction sets of x86 CPUs; each includes those before it. Other CPUs are `baseline`: Highway
/// chooses their vector instructions, and ATen computes their matmuls.
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
/// Returns the instruction set that kernels use now. This is a plain load, since vector loops call
/// it at each store.
inline Isa active_isa() { return detail::isa_in_use; }
/// Returns whether bfloat16 is multiplied by bfloat16 instructions. Returns false on Intel's
/// processors with AVX512_BF16 but without AMX, unless use_isa() was called: VDPBF16PS has half the
/// rate of VFMADD there, so it multiplies no more numbers in the same time than float32
/// instructions do. On AMD's processors, it multiplies twice as many.
inline bool multiplies_bf16() { return detail::multiplies_bf16; }
/// Makes kernels use `isa`, which the machine must have. Not thread-safe. This does not change
/// oneDNN's brgemm and ATen's kernels, which choose their instruction set themselves.
void use_isa(Isa isa);
/// Applies the environment variable LATHE_ISA, also to oneDNN and ATen. Throws Exit::usage if it
/// names a set that doesn't exist or that the machine lacks. Call it before the first computation;
/// once is enough.
void read_isa_from_environment();

}  // namespace lathe
