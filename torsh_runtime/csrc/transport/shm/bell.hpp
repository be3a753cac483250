// How a rank that sleeps in epoll is woken by the ranks of its node. A socket and not a futex, so
// that one sleep can end by shared memory and by the network alike.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/descriptor.hpp"

namespace torsh::shm {

// In shared memory, one per rank, written by its owner. Zeros: nobody sleeps, nobody can be rung.
struct alignas(128) BellSign {
  std::atomic<std::uint32_t> sleepers;  // threads of the owner that sleep, or are about to
  std::uint32_t length;                 // of the name
  char name[16];                        // of the owner's socket, in the abstract namespace
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Used by one thread at a time.
class Bell {
 public:
  // `sign`, this rank's own, must outlive the bell, which is made when it is needed first.
  explicit Bell(BellSign& sign) : sign_(sign) {}

  // Readable once it was rung. Throws std::system_error.
  int descriptor();
  void silence();

  // Whoever means to sleep, and watches the descriptor, says so, looks once more for what it waits for,
  // and then sleeps.
  void begin_sleep() { sign_.sleepers.fetch_add(1, std::memory_order_seq_cst); }
  void end_sleep() { sign_.sleepers.fetch_sub(1, std::memory_order_seq_cst); }

  // Wakes the peer if it sleeps; after what it is to see was written.
  void ring(const BellSign& peer) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer.sleepers.load(std::memory_order_acquire) != 0) wake(peer);  // whose name is there then
  }
  // Wakes this rank's own sleepers.
  void ring_own() { ring(sign_); }

 private:
  void wake(const BellSign& peer);
  void make();

  BellSign& sign_;
  Descriptor socket_;
};

}  // namespace torsh::shm
