// Monotonic time.
#pragma once

#include <time.h>

namespace torsh {

// Seconds since some moment; never goes back.
inline double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace torsh
