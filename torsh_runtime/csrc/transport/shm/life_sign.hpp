// By which a process tells others, without its doing, that it runs no more: when a thread ends, the kernel
// marks the futexes of its robust list and wakes one who waits for each (get_robust_list(2)). In a process that
// is killed that comes first, before its memory is freed.
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

// In shared memory, written by its owner and the kernel. Zeros: its owner gives no sign.
struct alignas(128) LifeSign {
  robust_list link;                // of use to the owner's kernel alone
  std::atomic<std::uint32_t> word;  // the futex: its owner's thread

  // Whether the thread that gave this sign has ended, which its process need not have.
  static bool is_over(std::uint32_t word) { return (word & FUTEX_OWNER_DIED) != 0; }
};

// The signs that one thread gives. Whoever changes the list keeps others from doing so; at each moment it is
// whole, since its thread may be killed at any.
class RobustList {
 public:
  // Makes it the calling thread's, in place of that of the C library, which then cannot use robust mutexes.
  void adopt() {
    thread_ = static_cast<std::uint32_t>(syscall(SYS_gettid));
    syscall(SYS_set_robust_list, &head_, sizeof head_);
  }

  void add(LifeSign& sign) {
    sign.word.store(thread_ | FUTEX_WAITERS, std::memory_order_relaxed);
    set(sign.link, &head_.list);
    set(signs_.empty() ? head_.list : signs_.back()->link, &sign.link);
    signs_.push_back(&sign);
  }

  void remove(LifeSign& sign) {
    const auto at = std::find(signs_.begin(), signs_.end(), &sign);
    set(at == signs_.begin() ? head_.list : (*(at - 1))->link, at + 1 == signs_.end() ? &head_.list : &(*(at + 1))->link);
    signs_.erase(at);
    sign.word.store(0, std::memory_order_relaxed);
  }

 private:
  static void set(robust_list& link, robust_list* next) { std::atomic_ref(link.next).store(next, std::memory_order_release); }

  static constexpr long offset = static_cast<long>(offsetof(LifeSign, word)) - static_cast<long>(offsetof(LifeSign, link));

  std::uint32_t thread_ = 0;
  std::vector<LifeSign*> signs_;  // in the order of the list, of which what others may write to is not read
  robust_list_head head_{{&head_.list}, offset, nullptr};
};

}  // namespace torsh::shm
