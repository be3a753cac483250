// Reads and writes the memory of the other ranks' processes (cross-memory attach): one copy where slots take two. The
// system may forbid it, so the ranks try it in their handshake.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torsh::shm {

// Copies from an address of another process. False with errno set if that fails: ESRCH if it has ended.
bool read_memory(int pid, std::byte* to, std::uint64_t from, std::size_t bytes);

class CrossMemory {
 public:
  // A word for this rank's peers to read, and its address.
  struct Probe {
    std::uint64_t address, word;
  };

  // pids[r] is rank r's process; values <= 0 cannot be read.
  CrossMemory(int rank, const std::vector<int>& pids);

  Probe probe() const;
  const std::vector<int>& pids() const { return pids_; }
  // Whether the peer's memory holds that word.
  bool can_read(int peer, const Probe& probe);
  // The outcome that all ranks have agreed on; false before.
  void allow(bool allowed) { allowed_ = allowed; }
  bool allowed() const { return allowed_; }

  // Whether the peers can read this memory of this process. They cannot read a device's.
  bool is_readable(const std::byte* data, std::size_t bytes);

  // Copies from an address of the peer. False with errno set if that fails: ESRCH if its process has
  // ended.
  bool read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes);
  // The most that one write can copy.
  static constexpr std::size_t piece_bytes = 256 << 10;
  // Copies to `to`, an iovec in shared memory that the system reads when it begins. Returns the number of bytes, 0 on
  // failure. No stop signal takes effect while the system copies.
  std::size_t write(int peer, const void* to, const std::byte* from);

  // Scratch memory for data that are used at once, aligned to cache lines. It is the same for every call, unless a
  // call needs more than all before.
  std::span<std::byte> room(std::size_t bytes);

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Shown {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  const int rank_;
  const std::vector<int> pids_;
  const std::uint64_t word_;
  std::array<Shown, 64> shown_;  // ranges found to be readable, by address
  std::vector<Line> room_;       // none before it is used
  bool allowed_ = false;
};

}  // namespace torsh::shm
