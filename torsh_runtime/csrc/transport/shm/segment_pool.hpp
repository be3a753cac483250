// Memory for further groups of a node's ranks, in the file that they have mapped for their first group. Ranks connect
// there without a store or a descriptor.
//
// Each rank has a part of the file. A new group's first member takes a segment of its own part and publishes it in
// the part's table. The others find it there by the group's name and report that they have come. The decision comes
// last: the group is created here or, for all of them, elsewhere.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/shm/blocks.hpp"
#include "transport/shm/peers.hpp"

namespace torsh::shm {

struct PoolSetup {
  int descriptor;  // stays the caller's
  std::size_t offset, stride;  // in the file; of a rank's part
  int rank;
  std::vector<int> pids;  // of all ranks of the node, in their order
};

enum class Decision : std::uint32_t { open, here, elsewhere };

class GroupFormation;

class SegmentPool : public std::enable_shared_from_this<SegmentPool> {
 public:
  // Throws std::system_error.
  static std::shared_ptr<SegmentPool> make(const PoolSetup& setup);
  ~SegmentPool();
  SegmentPool(const SegmentPool&) = delete;
  SegmentPool& operator=(const SegmentPool&) = delete;

  int ranks() const { return static_cast<int>(ranks_); }

 private:
  friend class GroupFormation;
  static constexpr std::size_t num_entries = 16;  // groups that threads of a rank can create at a time

  struct Member {
    std::atomic<std::uint32_t> come, done;  // the tickets of the last group that it has joined, and whose decision it has read
  };

  // A group that is being created. Members follow the entry, one for each rank of the pool.
  struct alignas(128) Entry {
    std::atomic<std::uint32_t> ticket;  // 0: none, and others do not find it any more
    std::atomic<std::uint32_t> decision;   // a Decision and a futex word
    std::atomic<std::uint32_t> arrivals;  // the first member's futex word, changed by each arrival and by the decision
    std::atomic<std::uint64_t> name[2], offset, bytes;
  };

  struct alignas(128) Table {
    std::atomic<std::uint32_t> published;  // futex word: changes with each entry
  };

  using Held = std::atomic<std::uint32_t>;  // whether a rank uses the segment; one for each, before it

  explicit SegmentPool(const PoolSetup& setup);
  void check_removal() const;
  std::byte* part(int rank) const { return base_ + stride_ * static_cast<std::size_t>(rank); }
  Table& table(int rank) const { return *reinterpret_cast<Table*>(part(rank)); }
  Entry& entry(int rank, std::size_t number) const;
  Member& member(Entry& entry, int rank) const { return reinterpret_cast<Member*>(&entry + 1)[rank]; }
  Held* held(int rank, std::uint64_t offset) const { return reinterpret_cast<Held*>(part(rank) + offset); }
  std::size_t entry_bytes() const;
  std::size_t table_bytes() const;
  std::size_t held_bytes() const;
  bool is_over(Entry& entry, std::uint32_t ticket) const;
  std::optional<std::size_t> free_entry();
  void forget(const std::array<std::uint64_t, 2>& name);
  bool is_held(std::size_t offset) const;
  std::size_t take(std::size_t bytes, const std::vector<int>& holders);
  void sweep();
  void give_back(std::size_t offset);

  const std::size_t stride_, ranks_;
  const int rank_;
  const unsigned forks_;
  std::byte* base_ = nullptr;
  Peers peers_;
  std::mutex mutex_;  // for what follows, and the entries of this rank's table
  Blocks blocks_;     // of this rank's part
  std::vector<std::size_t> left_;  // segments that this rank does not use any more
  std::uint32_t ticket_ = 0;
  std::array<std::uint32_t, num_entries> last_{};  // ticket of each entry
  std::array<bool, num_entries> busy_{};
};

// One member's part in creating a group. For one thread.
class GroupFormation {
 public:
  // name: a digest that differs from those of all other groups with any of its members. A later group with the same
  // members may reuse it. members: ranks of the pool, in the order of the group. bytes: the size of its segment.
  // Throws std::invalid_argument for members that are not in the pool, or without this rank.
  GroupFormation(std::shared_ptr<SegmentPool> pool, std::array<std::uint64_t, 2> name, std::vector<int> members, std::size_t bytes);
  ~GroupFormation() {
    leave();
    (void)take();
  }
  GroupFormation(const GroupFormation&) = delete;
  GroupFormation& operator=(const GroupFormation&) = delete;

  // Waits for the decision. Returns `open` after `seconds`, or after a member has ended. Throws Interrupted.
  Decision wait(double seconds, const std::function<bool()>& interrupted);
  // The members that are not known to have come, as ranks of the group.
  std::vector<int> missing() const;
  // The members whose processes have ended.
  std::vector<int> ended() const;
  // The segment, if the decision is `here`, for its lifetime. A second call returns none.
  std::shared_ptr<std::byte> take();
  // Decides, if nobody has, that the group is created elsewhere.
  void leave();

 private:
  bool is_first() const { return founder_ == pool_->rank_; }
  void publish();
  bool find();
  void decide(Decision decision);
  Decision published_decision() const;
  std::atomic<std::uint32_t>& word() const;
  void settle();
  void withdraw();

  const std::shared_ptr<SegmentPool> pool_;
  const std::array<std::uint64_t, 2> name_;
  const std::vector<int> members_;
  const std::size_t bytes_;
  const int founder_;
  SegmentPool::Entry* entry_ = nullptr;  // once it is found
  std::size_t number_ = 0;               // of the founder's entry
  std::uint32_t ticket_ = 0;
  std::uint64_t offset_ = 0;
  Decision decision_ = Decision::open;
  bool takes_ = false;  // the segment is held but not taken
};

}  // namespace torsh::shm
