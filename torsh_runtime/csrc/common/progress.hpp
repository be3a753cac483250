// Where a rank stands, noted for the agent that watches over it: see torsh_runtime/status.py for
// the layout and for how it is read. Only stores, to a line that nobody else writes.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/types.hpp"

namespace torsh {

class Progress {
 public:
  void enter(std::uint64_t sequence, const Call& call, std::uint32_t group, std::uint32_t ranks) {
    turn_.store(sequence << 2 | writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    call_.store(static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.dtype) << 8 |
                    static_cast<std::uint64_t>(call.op) << 16 |
                    static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32,
                std::memory_order_relaxed);
    count_.store(call.count, std::memory_order_relaxed);
    group_.store(group | static_cast<std::uint64_t>(ranks) << 32, std::memory_order_relaxed);
    turn_.store(sequence << 2 | inside, std::memory_order_release);
  }
  void leave(std::uint64_t sequence) { turn_.store(sequence << 2 | left, std::memory_order_release); }
  void met(std::uint64_t rounds) { rounds_.store(rounds, std::memory_order_relaxed); }

 private:
  enum : std::uint64_t { writing = 1, inside = 2, left = 3 };

  std::atomic<std::uint64_t> turn_{}, call_{}, count_{}, group_{}, rounds_{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace torsh
