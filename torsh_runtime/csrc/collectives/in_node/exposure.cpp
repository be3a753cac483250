#include "collectives/in_node/exposure.hpp"

#include <sched.h>

#include "collectives/in_node/steps.hpp"

namespace torsh::in_node {
// Dekker's way: either this rank sees the error, or whoever retreats because of it sees what is
// announced and takes it back. The system reads the announcement itself when it begins to copy, so
// even a rank that is stopped between this and the copying writes nothing when it goes on.
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

// The number of a process that has ended may be another one's by now.
std::size_t Writing::copy(int peer, const std::byte* from) {
  if (channel_.has_ended(peer)) return 0;
  return channel_.reach().write(peer, &announced_, from);
}

// Without a limit, since the memory is not the caller's before: a copy of 256 KiB ends, or its process
// does. A peer that is stopped is not inside the system's copying, which no signal interrupts.
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
