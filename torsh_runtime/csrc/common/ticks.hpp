// The processor's own clock, which costs a third of the system's: only for who records what has been. Its unit is
// found from readings of both clocks, see recorder.hpp.
#pragma once

#include <cstdint>

#include "common/clock.hpp"

namespace torsh {

inline std::uint64_t nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

// They are comparable between processors where the system's clock counts them itself (has_ticks()).
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return nanoseconds();
#endif
}

}  // namespace torsh
