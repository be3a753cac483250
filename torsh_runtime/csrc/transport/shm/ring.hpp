// A stream between two ranks of a node: a ring of bytes in shared memory for each direction, each
// with one writer and one reader.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/shm/wakeup.hpp"
#include "transport/stream.hpp"

namespace torsh::shm {

// The capacity of a ring, a power of two. All rings of a node together take at most 64 MiB, unless a page for each is
// more. A message that fits leaves its sender at once; of a larger one, a thread must move the rest while the program
// computes.
constexpr std::size_t ring_capacity(int ranks) {
  constexpr std::size_t most = 4 << 20, least = 4 << 10, together = 64 << 20;
  const std::size_t pairs = std::max<std::size_t>(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks), 1);
  return std::clamp(std::bit_floor(together / pairs), least, most);
}

// A writer that finds its ring empty continues at the ring's first byte rather than beyond so many bytes: they stay in
// the processors' caches, where a copy takes half as long as in the whole of a large ring.
constexpr std::size_t warm_bytes = 512 << 10;

// In shared memory, with the ring's bytes behind it; zeros are an empty ring. Lines that different ranks
// write stand 128 bytes apart.
struct RingMemory {
  struct alignas(128) {
    std::atomic<std::uint64_t> bytes;  // ever written, with what was skipped
    std::atomic<std::uint64_t> start;  // before this, what was not read by then was skipped
    std::atomic<std::uint32_t> cpu;    // where the writer ran, + 1
  } written;
  struct alignas(128) {
    std::atomic<std::uint64_t> bytes;  // ever read
  } taken;

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(sizeof(RingMemory) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class RingStream : public Stream {
 public:
  // The arguments must outlive the stream. The rings, of `capacity` bytes each, must never have been used. `own` is
  // this rank's wakeup socket, `peer` the state of the other's.
  RingStream(RingMemory& out, RingMemory& in, std::size_t capacity, WakeupSocket& own, const WakeupState& peer);

  std::size_t write(std::span<const std::byte> first, std::span<const std::byte> second) override;
  std::size_t read(std::span<std::byte> room) override;
  int descriptor() const override { return -1; }
  bool is_through() const override { return true; }
  int peer_cpu() const override;

 private:
  void return_to_start(std::size_t bytes);
  std::size_t append(std::span<const std::byte> bytes);
  std::size_t free_bytes(std::size_t wanted);
  std::size_t waiting_bytes(std::size_t wanted);

  RingMemory& out_;
  RingMemory& in_;
  const std::size_t capacity_;
  WakeupSocket& own_;
  const WakeupState& peer_;
  std::uint64_t written_ = 0, out_taken_ = 0;  // of the ring out; the second as it was last seen
  std::uint64_t start_ = 0;                    // of the ring out
  std::uint64_t taken_ = 0, in_written_ = 0;   // of the ring in, likewise
};

}  // namespace torsh::shm
