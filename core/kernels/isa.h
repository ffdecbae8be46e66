// Which instructions the CPU kernels use: those that the machine has, or fewer where the environment's LATHE_ISA says
// so, so that every path can be run, timed and tested on any machine that has more.
#pragma once

#include <string>
#include <vector>

namespace lathe {

/// Each includes those before it. Other CPUs than x86 are `baseline`: their vector loops are Highway's, their products
/// ATen's.
enum class Isa { baseline, avx2, avx512, avx512_bf16, amx };

/// "baseline", "avx2", "avx512", "avx512_bf16", "amx".
const char* isa_name(Isa isa);
/// The most that this machine has.
Isa machine_isa();
namespace detail {
extern Isa isa_in_use;
}
/// What kernels use now. A plain load, since vector loops ask at each store.
inline Isa active_isa() { return detail::isa_in_use; }
/// Makes kernels use `isa`, which the machine must have. Not thread-safe. oneDNN's small products and ATen's kernels
/// stay as they are once they have run.
void use_isa(Isa isa);
/// Does what LATHE_ISA says, for oneDNN and ATen too; Exit::usage where it names what there is not. Call before the
/// first tensor is computed with; once is enough.
void read_isa_from_environment();

}  // namespace lathe
