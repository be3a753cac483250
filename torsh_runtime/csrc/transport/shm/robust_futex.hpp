// Robust futexes, by which the kernel reports that a process runs no more. When a thread ends, the kernel marks the
// futexes of its robust list and wakes one waiter of each (get_robust_list(2)). If the process was killed, this comes
// first, before its memory is freed.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torsh::shm {

// In shared memory, written by its owner and the kernel. Zeros: its owner has none.
struct alignas(128) RobustFutex {
  robust_list link;  // used by the kernel for the owner only
  std::atomic<std::uint32_t> word;  // the futex, which holds the owner's thread ID

  // Whether the owning thread has ended; its process may live on.
  static bool owner_died(std::uint32_t word) { return (word & FUTEX_OWNER_DIED) != 0; }
};

// The robust list of one thread. Callers must serialise changes. The list is valid at each moment, since its thread
// may be killed at any.
class RobustList {
 public:
  // Makes it the calling thread's list. It replaces that of the C library, so this thread cannot use robust mutexes.
  void adopt() {
    thread_ = static_cast<std::uint32_t>(syscall(SYS_gettid));
    syscall(SYS_set_robust_list, &head_, sizeof head_);
  }

  void add(RobustFutex& futex) {
    futex.word.store(thread_ | FUTEX_WAITERS, std::memory_order_relaxed);
    set(futex.link, &head_.list);
    set(futexes_.empty() ? head_.list : futexes_.back()->link, &futex.link);
    futexes_.push_back(&futex);
  }

  void remove(RobustFutex& futex) {
    const auto at = std::find(futexes_.begin(), futexes_.end(), &futex);
    set(at == futexes_.begin() ? head_.list : (*(at - 1))->link, at + 1 == futexes_.end() ? &head_.list : &(*(at + 1))->link);
    futexes_.erase(at);
    futex.word.store(0, std::memory_order_relaxed);
  }

 private:
  static void set(robust_list& link, robust_list* next) { std::atomic_ref(link.next).store(next, std::memory_order_release); }

  static constexpr long offset = static_cast<long>(offsetof(RobustFutex, word)) - static_cast<long>(offsetof(RobustFutex, link));

  std::uint32_t thread_ = 0;
  std::vector<RobustFutex*> futexes_;  // in the list's order; links that others could overwrite are not read
  robust_list_head head_{{&head_.list}, offset, nullptr};
};

}  // namespace torsh::shm
