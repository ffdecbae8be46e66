// Selects the instruction set of the CPU kernels. By default, this is the largest set of the
// machine. The environment variable LATHE_ISA can select a smaller set, so that the code for this
// set can be run, timed and tested on a machine with a larger set.
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// Instruction sets of x86 CPUs. Each set includes the sets before it. Other CPUs have the set
/// `baseline`: Highway chooses the vector instructions, and ATen computes matmuls.
enum class Isa { baseline, avx2, avx512, avx512_bf16, amx };

/// Returns the name of an instruction set: "baseline", "avx2", "avx512", "avx512_bf16" or "amx".
const char* isa_name(Isa isa);
/// Returns the largest instruction set that this machine has.
Isa machine_isa();
/// Returns whether the machine has AMX that multiplies float16.
bool has_amx_fp16();
namespace detail {
extern Isa isa_in_use;
extern bool multiplies_bf16;
}  // namespace detail
/// Returns the instruction set that kernels use now. Vector loops call this function at each store,
/// so the function only loads a variable.
inline Isa active_isa() { return detail::isa_in_use; }
/// Returns whether kernels use bfloat16 instructions to multiply bfloat16 numbers. Returns false on
/// Intel's processors with AVX512_BF16 but without AMX, unless use_isa() was called. On these
/// processors, VDPBF16PS has half the rate of VFMADD, so it multiplies as many numbers in the same
/// time as float32 instructions do. On AMD's processors, VDPBF16PS multiplies twice as many.
inline bool multiplies_bf16() { return detail::multiplies_bf16; }
/// Makes kernels use `isa`, which the machine must have. This does not change oneDNN's brgemm and
/// ATen's kernels, which choose their instruction set themselves. Not thread-safe.
void use_isa(Isa isa);
/// Applies the environment variable LATHE_ISA to Lathe's kernels, oneDNN and ATen. Throws
/// Exit::usage if LATHE_ISA names a set that doesn't exist or that the machine lacks. Call this
/// function once, before the first computation.
void read_isa_from_environment();

}  // namespace lathe
