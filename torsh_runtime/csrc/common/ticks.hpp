// The processor's own clock, which costs a third of the system's: only for who records what has been. Its unit is
// found from readings of both clocks, see recorder.hpp.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "common/clock.hpp"

namespace torsh {

inline std::uint64_t nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

#if defined(__x86_64__)
// Whether they are the same on all processors, and go on at the same rate: the kernel's own clock counts them then.
inline bool has_steady_ticks() {
  static const bool is_steady = [] {
    char name[16] = {};
    std::FILE* const file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (file == nullptr) return false;
    const bool is_read = std::fgets(name, sizeof name, file) != nullptr;
    std::fclose(file);
    return is_read && std::strcmp(name, "tsc\n") == 0;
  }();
  return is_steady;
}
#endif

// Nanoseconds where the processor's clock does not serve. The clock is not read in order with the memory accesses around
// it, which would cost as much again: it may be up to a microsecond early.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return has_steady_ticks() ? __builtin_ia32_rdtsc() : nanoseconds();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return nanoseconds();
#endif
}

}  // namespace torsh
