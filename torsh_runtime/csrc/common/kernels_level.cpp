#include "common/kernels_level.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

namespace torsh::kernels {
namespace {

// What older compilers do not let __builtin_cpu_supports be asked for by name.
bool has_small_features_of_v3() {
  unsigned a = 0, b = 0, basic = 0, extended = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &basic, &d) || !__get_cpuid(0x80000001, &a, &b, &extended, &d)) return false;
  constexpr unsigned basic_bits = bit_F16C | bit_MOVBE, extended_bits = bit_LZCNT;
  return (basic & basic_bits) == basic_bits && (extended & extended_bits) == extended_bits;
}

bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma") && has_small_features_of_v3();
}

bool has_v4() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && has_v3();
}

Level detected() {
  if (has_v4()) return Level::v4;
  return has_v3() ? Level::v3 : Level::baseline;
}

}  // namespace

Level own_level() {
  static const Level level = detected();  // hypervisors take microseconds to answer cpuid
  return level;
}

}  // namespace torsh::kernels
#endif
