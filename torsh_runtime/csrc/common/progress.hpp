// A rank's progress, noted for the agent that watches it: see torsh_runtime/status.py for the layout and for how it
// is read. Only stores, to a line that no other process writes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/types.hpp"

namespace torsh {

class Progress {
 public:
  void enter(std::uint64_t sequence, const Call& call, std::uint32_t group, std::uint32_t ranks) {
    turn_.store(sequence << 2 | writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    call_.store(call.summary(), std::memory_order_relaxed);
    count_.store(call.count, std::memory_order_relaxed);
    group_.store(group | static_cast<std::uint64_t>(ranks) << 32, std::memory_order_relaxed);
    turn_.store(sequence << 2 | inside, std::memory_order_release);
  }
  void leave(std::uint64_t sequence) { turn_.store(sequence << 2 | left, std::memory_order_release); }
  void met(std::uint64_t rounds) { rounds_.store(rounds, std::memory_order_relaxed); }

  // A user's message that the rank has waited for for a while: its direction, the job rank of the peer, and its tag,
  // if not any. For a receive, perhaps also the tag of another message that has come from there.
  void await(OpKind kind, int peer, std::optional<std::uint64_t> tag, std::optional<std::uint64_t> instead) {
    tag_.store(tag.value_or(0), std::memory_order_relaxed);
    instead_.store(instead.value_or(0), std::memory_order_relaxed);
    message_.store(static_cast<std::uint64_t>(kind) | (tag ? has_tag : 0) | (instead ? has_instead : 0) |
                       static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32,
                   std::memory_order_release);
  }
  void await_no_more() { message_.store(0, std::memory_order_release); }

 private:
  enum : std::uint64_t { writing = 1, inside = 2, left = 3, has_tag = 1 << 8, has_instead = 1 << 9 };

  static constexpr void compare() {
#include "common/progress_layout.inc"  // made of torsh_runtime/status.py
  }

  std::atomic<std::uint64_t> turn_{}, call_{}, count_{}, group_{}, rounds_{}, message_{}, tag_{}, instead_{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace torsh
