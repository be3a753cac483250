// Waiting in the kernel for a word of shared memory to change (futex(2), between processes).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#ifndef FUTEX_WAITV_MAX  // headers before Linux 5.16
#define FUTEX_WAITV_MAX 128
#define FUTEX_32 2
struct futex_waitv {
  std::uint64_t val, uaddr;
  std::uint32_t flags, reserved;
};
#endif
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace torsh::shm {

// Returns when the word is no longer `seen`, on a wake, on a signal, or after so many seconds (< 1).
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds) {
  const timespec limit{0, static_cast<long>(std::max(seconds, 0.0) * 1e9)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A word, and what it was.
using Seen = std::pair<std::atomic<std::uint32_t>*, std::uint32_t>;
constexpr std::size_t most_waited_for = FUTEX_WAITV_MAX;

// Returns when one of the words is no longer what it was, on a wake, on a signal, or as of now() at `until`, if
// there is such a time. False if the kernel cannot do that (before Linux 5.16, or where it is forbidden).
inline bool futex_wait_any(const std::vector<Seen>& words, std::optional<double> until) {
  std::vector<futex_waitv> waited(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    waited[i] = {words[i].second, reinterpret_cast<std::uintptr_t>(words[i].first), FUTEX_32, 0};
  }
  timespec limit{};
  if (until) limit = {static_cast<time_t>(*until), static_cast<long>((*until - static_cast<double>(static_cast<time_t>(*until))) * 1e9)};
  const long woken = syscall(SYS_futex_waitv, waited.data(), waited.size(), 0, until ? &limit : nullptr, CLOCK_MONOTONIC);
  return woken >= 0 || errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR;
}

}  // namespace torsh::shm
