#include "collectives/in_node/exposure.hpp"

#include <sched.h>

#include "collectives/in_node/steps.hpp"

namespace torsh::in_node {
// Dekker's algorithm: either this rank sees the error, or the rank that retreats because of it sees the announcement
// and withdraws it. The system reads the announcement itself when it begins to copy, so even a rank that is stopped
// before that writes nothing when it continues.
Writing::Writing(shm::Channel& channel, std::uint64_t address, std::size_t bytes)
    : channel_(channel), announced_(channel.segment().area(channel.rank()).writing) {
  announced_.address.store(address, std::memory_order_relaxed);
  announced_.bytes.store(bytes, std::memory_order_relaxed);
  announced_.active.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  try {
    channel.check_abort();
  } catch (...) {
    announced_.active.store(0, std::memory_order_release);
    throw;
  }
}

Writing::~Writing() { announced_.active.store(0, std::memory_order_release); }

// The PID of an ended process may have been reused.
std::size_t Writing::copy(int peer, const std::byte* from) {
  if (channel_.has_ended(peer)) return 0;
  return channel_.cross_memory().write(peer, &announced_, from);
}

// Has no deadline, since the memory is not the caller's before: a copy of 256 KiB ends, or its process does. A
// stopped peer is not inside the system's copy, which no signal interrupts.
void Exposed::retreat() {
  channel_.abort();
  for_peers(channel_, [&](int peer) {
    shm::Announcement& announced = channel_.segment().area(peer).writing;
    announced.bytes.store(0, std::memory_order_seq_cst);
    while (announced.active.load(std::memory_order_seq_cst) != 0) {
      if (channel_.gone(peer) || channel_.is_stopped(peer)) return;
      sched_yield();
    }
  });
}

}  // namespace torsh::in_node
