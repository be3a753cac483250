// Waiting in the kernel for a word of shared memory to change (futex(2), between processes).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>

namespace torsh::shm {

// Returns when the word is no longer `seen`, on a wake, on a signal, or after so many seconds (< 1).
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds) {
  const timespec limit{0, static_cast<long>(std::max(seconds, 0.0) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace torsh::shm
