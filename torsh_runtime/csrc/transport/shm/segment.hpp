// The memory shared by the ranks of one node: flags and two slots per rank, and a ring from each rank to each other
// rank.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>

#include "common/failure.hpp"
#include "common/types.hpp"
#include "transport/shm/robust_futex.hpp"
#include "transport/shm/ring.hpp"

namespace torsh::shm {

constexpr std::size_t max_ranks = 1024;  // of a node
constexpr std::size_t tiny_bytes = 48;
// The number of rounds that a rank can be ahead of others; powers of two. With a CPU each, ranks are never far ahead,
// and few lines stay in the cache. Where many share a CPU, a rank should get much done in each turn.
constexpr std::uint32_t dedicated_flags = 32;
constexpr std::uint32_t crowded_flags(int ranks) { return ranks < 16 ? 128 : 256; }

// All of this is stored in a file of zeros, so zero must mean "nothing yet" everywhere.

// CPUs fetch pairs of lines, so data of different ranks are 128 bytes apart.
struct alignas(128) Flag {
  std::atomic<std::uint32_t> round;  // the futex word
  std::atomic<std::uint16_t> cpu;    // where the writer ran, + 1
  std::atomic<std::uint16_t> behind;  // the writer knows that all ranks have posted the round this many rounds ago
  std::atomic<std::uint64_t> fingerprint;  // of the writer's calls so far
  std::byte payload[tiny_bytes];
  // In the next line, a leader's release in a two-level round: the round, once all ranks have posted it. A futex
  // word.
  alignas(64) std::atomic<std::uint32_t> released;
};
static_assert(sizeof(Flag) == 128);

// Why the group failed, written by the rank that found it; ranks are the group's.
struct AbortRecord {
  static constexpr std::size_t most_missing = 256;

  FailureKind kind;
  std::int32_t rank, reporter;
  OpKind op;
  std::uint64_t sequence;
  double seconds;
  Call own, other;
  std::uint32_t num_missing;
  std::int32_t missing[most_missing];  // of more, the first
};

// The peer's memory that a rank is about to write, while `active`. It begins like an iovec, which the system reads
// when it begins to copy. Until then peers can withdraw it.
struct alignas(128) Announcement {
  std::atomic<std::uint64_t> address, bytes;
  std::atomic<std::uint32_t> active;
};

// A rank's call, which peers read to explain a disagreement. The rank may have continued meanwhile; then words of two
// calls are mixed.
class ShownCall {
 public:
  void show(const Call& call) {
    std::uint64_t words[num_words];
    std::memcpy(words, &call, sizeof call);
    for (std::size_t i = 0; i < num_words; ++i) words_[i].store(words[i], std::memory_order_relaxed);
  }
  Call look() const {
    std::uint64_t words[num_words];
    for (std::size_t i = 0; i < num_words; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    Call call;
    std::memcpy(&call, words, sizeof call);
    return call;
  }

 private:
  static constexpr std::size_t num_words = sizeof(Call) / sizeof(std::uint64_t);
  static_assert(sizeof(Call) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<Call>);
  std::atomic<std::uint64_t> words_[num_words];
};

struct RankArea {
  struct alignas(128) {
    std::atomic<std::uint32_t> count;
    std::atomic<double> left_until;  // as of now(); until then notify_all() may leave them asleep
  } sleepers;  // ranks that sleep in the kernel until this rank posts
  struct alignas(128) {
    ShownCall call;
    ShownCall unchecked;  // the last call in which this rank did not wait for all others, and its number
    std::atomic<std::uint64_t> unchecked_sequence;
    std::atomic<std::uint64_t> sequence;  // the operation's number, counted from 1
    std::atomic<std::uint64_t> coming;  // the announced next operation, if any
    std::atomic<std::uint32_t> left;
    cpu_set_t cpus;  // CPUs that this rank may run on
    double quota;  // in CPUs, shared by the ranks of this control group
    std::uint64_t quota_group;  // 0: no limit
    std::uint32_t cache;  // the cache that its CPUs share; 0: none
  } own;
  WakeupState wakeup;
  RobustFutex liveness;
  Announcement writing;
  alignas(128) AbortRecord abort;
};

struct alignas(128) Header {
  std::atomic<std::uint32_t> aborted_by;  // rank + 1 of the writer of the valid AbortRecord
  // Where ranks share CPUs: the number of arrivals at rounds in which all wait for all, and the last such round that
  // all have reached, a futex word.
  alignas(128) std::atomic<std::uint32_t> arrivals, opened;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// Maps the first bytes of a file of at least that size; the descriptor stays the caller's. Throws
// std::system_error, and std::invalid_argument for a file that is too small.
std::shared_ptr<std::byte> map_segment(int descriptor, std::size_t bytes);

class Segment {
 public:
  static std::size_t bytes_for(int ranks, std::size_t slot_bytes);
  // For a rank that cannot create its end of the group: the others of its node, which wait for it, see the group
  // aborted by it. `name` is its rank in the group.
  static void abandon(std::byte* memory, int rank, int ranks, int name);
  // The same of a file; throws what map_segment does.
  static void abandon(int descriptor, int rank, int ranks, int name);

  // Allocates the pages that ranks wait on; others are allocated when they are used. Throws std::system_error.
  Segment(std::shared_ptr<std::byte> memory, int rank, int ranks, std::size_t slot_bytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Header& header() { return *reinterpret_cast<Header*>(base()); }
  RankArea& area(int rank) { return reinterpret_cast<RankArea*>(base() + sizeof(Header))[rank]; }
  std::span<Flag> flags(int rank) { return {flags_ + static_cast<std::size_t>(rank) * flags_stride_, flags_stride_ - 1}; }
  std::byte* slot(int rank, unsigned parity) {
    return slots_ + (static_cast<std::size_t>(rank) * 2 + parity) * slot_bytes_;
  }
  // Allocates the first bytes of this rank's slot. Throws std::system_error.
  void prepare_slot(unsigned parity, std::size_t bytes) {
    if (bytes > present_[parity]) extend_slot(parity, bytes);
  }
  std::size_t ring_capacity() const { return shm::ring_capacity(static_cast<int>(ranks_)); }
  // The ring that `from` writes and `to` reads. It is allocated when it is used.
  RingMemory& ring(int from, int to) {
    const std::size_t number = static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
    return *reinterpret_cast<RingMemory*>(rings_ + number * (sizeof(RingMemory) + ring_capacity()));
  }

 private:
  void extend_slot(unsigned parity, std::size_t bytes);
  std::byte* base() const { return memory_.get(); }

  const std::shared_ptr<std::byte> memory_;
  const int rank_;
  const std::size_t ranks_;
  const std::size_t slot_bytes_;
  const std::size_t flags_stride_;
  Flag* flags_;
  std::byte* slots_;
  std::size_t present_[2] = {};  // bytes of this rank's slots
  std::byte* rings_;
};

}  // namespace torsh::shm
