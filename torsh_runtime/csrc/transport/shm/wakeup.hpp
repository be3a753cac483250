// Wakes a rank of this node that sleeps in epoll. It is a socket and not a futex, so that both shared memory and the
// network can end one sleep.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/descriptor.hpp"

namespace torsh::shm {

// In shared memory, one per rank, written by its owner. Zeros: no thread sleeps, and there is no socket.
struct alignas(128) WakeupState {
  std::atomic<std::uint32_t> sleepers;  // threads of the owner that sleep, or are about to
  std::uint32_t length;                 // of the name
  char name[16];                        // of the owner's socket, in the abstract namespace
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Used by one thread at a time.
class WakeupSocket {
 public:
  // `state` is this rank's own and must outlive this. The socket is created when it is first needed.
  explicit WakeupSocket(WakeupState& state) : state_(state) {}

  // Readable after a wake(). Throws std::system_error.
  int descriptor();
  void drain();

  // A thread that watches the descriptor calls begin_sleep(), checks once more for what it waits for, and then
  // sleeps.
  void begin_sleep() { state_.sleepers.fetch_add(1, std::memory_order_seq_cst); }
  void end_sleep() { state_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }

  // Wakes the peer if it sleeps. Call it after writing what the peer is to see.
  void wake(const WakeupState& peer) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer.sleepers.load(std::memory_order_acquire) != 0) send_datagram(peer);  // its name is set by then
  }
  // Wakes this rank's own sleepers.
  void wake_own() { wake(state_); }

 private:
  void send_datagram(const WakeupState& peer);
  void make();

  WakeupState& state_;
  Descriptor socket_;
};

}  // namespace torsh::shm
