// Rounds over a shared segment: all that the collectives need to know about each other's progress.
//
// In a round every rank posts its flag and waits for all others'. Slots alternate with the blocks:
// whoever begins block k + 2 has seen every flag of block k + 1, and those were posted after the
// last read of block k; so two slots a rank are enough and no block needs a closing round.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/progress.hpp"
#include "transport/shm/peers.hpp"
#include "transport/shm/segment.hpp"

namespace torsh::shm {

// Where one algorithm gives way to the next, in bytes; the same on all ranks.
struct Tuning {
  std::size_t whole_limit;  // all_reduce: up to here every rank reduces everything in one round
  std::size_t block_bytes;  // larger buffers go through the slots in blocks of this size
};
std::size_t slot_bytes(const Tuning& tuning);

class Channel {
 public:
  // `interrupted` is called now and then while waiting; true ends the wait with Interrupted.
  // `progress`, which must outlive the channel, is where it notes what it does, as the process's
  // group number `group`; null is nowhere.
  Channel(int descriptor, int rank, int ranks, const Tuning& tuning, const std::vector<int>& pids,
          std::function<bool()> interrupted, Progress* progress = nullptr, std::uint32_t group = 0);

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Tuning& tuning() const { return tuning_; }

  // One collective call: holds the channel from construction to destruction.
  class Operation {
   public:
    // Throws Failure if the group is dead or not to be had. timeout in seconds.
    Operation(Channel& channel, const Call& call, double timeout);
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    void acquire(double timeout);

    Channel& channel_;
  };

  // Posts, with at most tiny_bytes of payload, and waits for everybody. Throws Failure or
  // Interrupted, after which the group is dead on all ranks.
  void round(const void* payload = nullptr, std::size_t bytes = 0);
  // What a peer posted with the round that has just ended.
  const std::byte* payload(int peer) { return segment_->area(peer).flags[round_ & 1].payload; }

  void next_block() { ++block_; }
  std::byte* slot(int peer) { return segment_->slot(peer, block_ & 1); }

  // Ends every rank's pending and later operations with FailureKind::aborted.
  void abort();
  // Tells the peers that this rank takes part no more and lets go of the memory. An operation
  // that is under way, in another thread or interrupted by the caller's signal handler, is aborted.
  void close();

 private:
  void begin(const Call& call, double timeout);
  void post(const void* payload, std::size_t bytes);
  void await(int peer);
  bool posted(int peer);
  bool spin(int peer);
  int last_cpu(int peer);
  bool shares_cpu(int peer);
  void move_away();
  void sleep(int peer);
  void check();
  void check_peers();
  void compare(int peer);
  [[noreturn]] void fail(const Failure& failure);
  void check_abort();
  void record(const Failure& failure);
  Failure failure(FailureKind kind, int culprit) const;
  std::vector<int> not_posted();
  void wake(int peer);

  const unsigned forks_;  // what forks() said when the channel was made
  const int rank_, ranks_;
  const Tuning tuning_;
  std::optional<Segment> segment_;  // none once closed
  std::optional<Peers> peers_;
  std::function<bool()> interrupted_;
  Progress unseen_;
  Progress* const progress_;
  const std::uint32_t group_;
  std::timed_mutex busy_;  // held by the operation under way
  std::atomic<std::thread::id> owner_{};  // the thread of that operation
  std::mutex life_;        // abort() comes from any thread, and the segment must stay for it
  std::vector<int> dead_;
  int spins_;
  int shared_waits_ = 0;  // in a row, on a peer that ran on this CPU
  double moved_ = 0;      // when this thread last moved
  std::uint32_t round_ = 0;
  std::uint64_t block_ = 0;
  // Counted from 0, which is the barrier of the ranks' first meeting. This and the next are also
  // read by abort() on another thread.
  std::atomic<std::uint64_t> sequence_{~std::uint64_t{0}};
  std::atomic<OpKind> op_{};
  std::uint64_t fingerprint_ = 0;
  double timeout_ = 0, deadline_ = 0;
};

}  // namespace torsh::shm
