// Which CPU a thread runs on, and getting off it.
#pragma once

#include <sched.h>

#include <vector>

namespace torsh::shm {

int current_cpu();

// The CPUs that this thread may run on, and their number.
int allowed_cpus(cpu_set_t& set);

// Moves this thread to an allowed CPU that is none of these, if there is one; afterwards it may run
// everywhere it could before.
void leave_cpus(const std::vector<int>& occupied);

// Seconds that a rank spins before it gives up its processor.
constexpr double spin_seconds = 100e-6;

// In a loop that waits for another CPU.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace torsh::shm
