// The memory that the ranks of one node share: a flag line and two slots for each rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/failure.hpp"
#include "common/types.hpp"
#include "transport/shm/cpu.hpp"

namespace torsh::shm {

constexpr std::size_t max_ranks = 1024;
constexpr std::size_t tiny_bytes = 48;

// Pairs of lines are fetched together, so what different ranks write stands 128 bytes apart.
struct alignas(128) Flag {
  std::atomic<std::uint32_t> round{0};  // the futex word
  std::uint16_t cpu = no_cpu;           // where the writer ran
  std::uint16_t unused = 0;
  std::uint64_t fingerprint = 0;        // of the writer's call
  std::byte payload[tiny_bytes]{};
};

struct RankArea {
  Flag flags[2];  // by the parity of the round: nobody can be two rounds ahead
  struct alignas(128) {
    std::atomic<std::uint32_t> count{0};
  } sleepers;  // ranks that wait in the kernel for this one's flag
  struct alignas(128) {
    Call call;
    std::atomic<std::uint32_t> left{0};
  } own;
};

struct alignas(128) AbortRecord {
  std::atomic<std::uint32_t> state{0};  // 0 none, 1 being written, 2 valid
  FailureKind kind{};
  std::int32_t rank = -1, reporter = -1;
  OpKind op{};
  std::uint64_t sequence = 0;
  double seconds = 0;
  std::uint64_t missing[max_ranks / 64]{};
};

struct Header {
  AbortRecord abort;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// A mapping of the segment. The descriptor stays the caller's.
class Segment {
 public:
  static std::size_t bytes_for(int ranks, std::size_t slot_bytes);

  // Maps the whole segment and makes this rank's own pages present. Throws std::system_error.
  Segment(int descriptor, int rank, int ranks, std::size_t slot_bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Header& header() { return *reinterpret_cast<Header*>(base_); }
  RankArea& area(int rank) { return reinterpret_cast<RankArea*>(base_ + sizeof(Header))[rank]; }
  std::byte* slot(int rank, unsigned parity) {
    return slots_ + (static_cast<std::size_t>(rank) * 2 + parity) * slot_bytes_;
  }
  std::size_t slot_bytes() const { return slot_bytes_; }

 private:
  std::size_t slot_bytes_;
  std::size_t length_;
  std::byte* base_;
  std::byte* slots_;
};

}  // namespace torsh::shm
