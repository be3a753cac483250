// A stream between two ranks of a node: a ring of bytes in shared memory for each direction, each
// with one writer and one reader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/bell.hpp"
#include "transport/stream.hpp"

namespace torsh::shm {

// In shared memory; zeros are an empty ring. Lines that different ranks write stand 128 bytes apart.
struct RingMemory {
  static constexpr std::size_t capacity = 128 << 10;

  struct alignas(128) {
    std::atomic<std::uint64_t> bytes;  // ever written
    std::atomic<std::uint32_t> cpu;    // where the writer ran, + 1
  } written;
  struct alignas(128) {
    std::atomic<std::uint64_t> bytes;  // ever read
  } taken;
  alignas(128) std::byte data[capacity];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class RingStream : public Stream {
 public:
  // All of it must outlive the stream. `own` is this rank's bell, `peer` the sign of the other's.
  RingStream(RingMemory& out, RingMemory& in, const Bell& own, const BellSign& peer);

  // What each of the two rings takes in the shared memory; aligned to 128.
  static constexpr std::size_t bytes() { return sizeof(RingMemory); }

  std::size_t write(std::span<const std::byte> first, std::span<const std::byte> second) override;
  std::size_t read(std::span<std::byte> room) override;
  int descriptor() const override { return -1; }
  bool is_through() const override { return true; }
  int peer_cpu() const override;

 private:
  std::size_t append(std::span<const std::byte> bytes);
  std::size_t free_bytes(std::size_t wanted);
  std::size_t waiting_bytes(std::size_t wanted);

  RingMemory& out_;
  RingMemory& in_;
  const Bell& own_;
  const BellSign& peer_;
  std::uint64_t written_, out_taken_;  // of the ring out; the second as it was last seen
  std::uint64_t taken_, in_written_;   // of the ring in, likewise
};

}  // namespace torsh::shm
