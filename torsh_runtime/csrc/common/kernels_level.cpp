#include "common/kernels_level.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

namespace torsh::kernels {
namespace {

// Asked of the processor itself: not every compiler's library knows what __builtin_cpu_supports asks for,
// and zig's says no to all of it.
struct Processor {
  unsigned basic = 0, extended = 0, more = 0;
  unsigned kept = 0;  // the registers that the kernel keeps for each thread
};

Processor look() {
  Processor found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &found.basic, &d) == 0) return found;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d) != 0) found.extended = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) found.more = b;
  if ((found.basic & bit_OSXSAVE) != 0) asm("xgetbv" : "=a"(found.kept), "=d"(d) : "c"(0));
  return found;
}

bool has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

bool has_v3(const Processor& own) {
  constexpr unsigned vectors = 0b110;  // XMM and YMM
  return has(own.kept, vectors) && has(own.basic, bit_AVX | bit_FMA | bit_F16C | bit_MOVBE | bit_POPCNT) &&
         has(own.extended, bit_LZCNT) && has(own.more, bit_AVX2 | bit_BMI | bit_BMI2);
}

bool has_v4(const Processor& own) {
  constexpr unsigned vectors = 0b11100110;  // ZMM and masks as well
  constexpr unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return has(own.kept, vectors) && has(own.more, wanted) && has_v3(own);
}

Level detected() {
  const Processor own = look();
  if (has_v4(own)) return Level::v4;
  return has_v3(own) ? Level::v3 : Level::baseline;
}

}  // namespace

Level own_level() {
  static const Level level = detected();  // hypervisors take microseconds to answer cpuid
  return level;
}

}  // namespace torsh::kernels
#endif
