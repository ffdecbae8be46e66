#include "core/kernels/isa.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <array>
#include <cstdlib>

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "core/error.h"

namespace lathe {
namespace {

constexpr std::array<const char*, 5> names{"baseline", "avx2", "avx512", "avx512_bf16", "amx"};

#ifdef __x86_64__
bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((d >> 22) & 1) != 0;
}
#endif

bool bf16_matmuls_are_faster() {
#ifdef __x86_64__
  return machine_isa() == Isa::amx ||
         (machine_isa() == Isa::avx512_bf16 && !__builtin_cpu_is("intel"));
#else
  return false;
#endif
}

}  // namespace

Isa detail::isa_in_use = machine_isa();
bool detail::multiplies_bf16 = bf16_matmuls_are_faster();

const char* isa_name(Isa isa) { return names[static_cast<size_t>(isa)]; }

Isa machine_isa() {
#ifdef __x86_64__
  static const Isa isa = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::baseline;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
      return Isa::avx2;
    if (!__builtin_cpu_supports("avx512bf16")) return Isa::avx512;
    return has_amx_bf16() ? Isa::amx : Isa::avx512_bf16;
  }();
  return isa;
#else
  return Isa::baseline;
#endif
}

bool has_amx_fp16() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  return machine_isa() == Isa::amx && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         ((a >> 21) & 1) != 0;
#else
  return false;
#endif
}

void use_isa(Isa isa) {
  LATHE_CHECK(isa <= machine_isa(), "this CPU does not support ", isa_name(isa),
              ", only instruction sets up to ", isa_name(machine_isa()));
  detail::isa_in_use = isa;
  detail::multiplies_bf16 = isa >= Isa::avx512_bf16;
  int64_t targets = hwy::SupportedTargets();
#ifdef __x86_64__
  if (isa < Isa::avx512) targets &= ~int64_t{HWY_AVX3 | HWY_AVX3_DL};
  if (isa < Isa::avx2) targets &= ~int64_t{HWY_AVX2};
#endif
  hwy::GetChosenTarget().Update(targets);
}

void read_isa_from_environment() {
  const char* wanted = std::getenv("LATHE_ISA");
  if (wanted == nullptr || *wanted == 0) return;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != std::string(wanted)) continue;
    const Isa isa = static_cast<Isa>(i);
    if (isa > machine_isa())
      fail(Exit::usage, "LATHE_ISA=", wanted, ": this CPU supports only instruction sets up to ",
           isa_name(machine_isa()), "; set LATHE_ISA to this set or a smaller one");
    constexpr std::array<const char*, 5> onednn{"SSE41", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16",
                                                "ALL"};
    setenv("ONEDNN_MAX_CPU_ISA", onednn[i], /*overwrite=*/0);
    if (isa < Isa::avx512)
      setenv("ATEN_CPU_CAPABILITY", isa == Isa::avx2 ? "avx2" : "default", /*overwrite=*/0);
    return use_isa(isa);
  }
  fail(Exit::usage, "LATHE_ISA=", wanted,
       ": it must be one of baseline, avx2, avx512, avx512_bf16 and amx");
}

}  // namespace lathe
