// Reading the memory of the other ranks' processes: one copy where slots take two. The system may
// forbid it, so the ranks try it when they meet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace torsh::shm {

// Copies from an address of another process. False with errno set if that fails: ESRCH if it has ended.
bool read_memory(int pid, std::byte* to, std::uint64_t from, std::size_t bytes);

class Reach {
 public:
  // A word that this rank's peers are to find, and where.
  struct Probe {
    std::uint64_t address, word;
  };

  // pids[r] is rank r's process; values <= 0 are out of reach.
  Reach(int rank, const std::vector<int>& pids);

  Probe probe() const;
  const std::vector<int>& pids() const { return pids_; }
  // Whether that is what the peer's memory holds.
  bool finds(int peer, const Probe& probe);
  // What all ranks have agreed on after they looked; false before.
  void allow(bool allowed) { allowed_ = allowed; }
  bool allowed() const { return allowed_; }

  // Whether the peers can get at this memory of this process: they cannot where it is a device's.
  bool shows(const std::byte* data, std::size_t bytes);

  // Copies from an address of the peer. False with errno set if that fails: ESRCH if its process has
  // ended.
  bool read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes);
  // So much can be written at a time.
  static constexpr std::size_t piece_bytes = 256 << 10;
  // Copies as much as `to`, an iovec in shared memory, says when the system has got there; how many
  // bytes, 0 if that fails. No signal that stops this process does so while the system copies.
  std::size_t write(int peer, const void* to, const std::byte* from);

  // Memory for what is read only to be used at once. Aligned to cache lines; the same for every call, unless
  // that wants more than all before.
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
  std::array<Shown, 64> shown_;  // what was found to be good, by address
  std::vector<Line> room_;       // none before it is used
  bool allowed_ = false;
};

}  // namespace torsh::shm
