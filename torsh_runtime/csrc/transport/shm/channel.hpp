// Rounds over a shared segment, through which the ranks of a node follow each other's progress.
//
// In a round every rank posts its flag. Most ranks wait for all other flags, some for one or for none. Slots
// alternate from block to block. A rank that begins block k + 2, after a round of block k + 1 in which it waited for
// all, has seen flags that were posted after the last read of block k. So two slots per rank are enough, and no block
// needs a closing round. After other rounds the rank waits until those flags are there. With many ranks (tuning.hpp)
// a barrier has two levels: a leader waits for its members before it posts, then for the other leaders, and then
// releases its members, which wait only for that. A flag's line is written again num_flags_ rounds later, when all
// ranks have posted a flag after it.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/progress.hpp"
#include "common/recorder.hpp"
#include "transport/shm/peers.hpp"
#include "transport/shm/cross_memory.hpp"
#include "transport/shm/regions.hpp"
#include "transport/shm/segment.hpp"
#include "transport/shm/tuning.hpp"
#include "transport/shm/liveness.hpp"
#include "transport/waiting.hpp"

namespace torsh::shm {

// The channel's callbacks in a group that may span several nodes. Any may be empty.
struct Hooks {
  // Called regularly while waiting; true ends the wait with Interrupted.
  std::function<bool()> interrupted;
  // Called regularly while waiting; throws Failure if other nodes report one.
  std::function<void()> look_around;
  // Reports to the other nodes why the group failed.
  std::function<void(const Failure&)> announce;
  // Ranks of other nodes that have not begun operation `sequence`.
  std::function<std::vector<int>(std::uint64_t sequence)> absent;
};

// Arguments of a channel. `group_ranks` are the ranks of this node in the group, ascending, and `pids` their
// processes. The channel notes its progress in `progress`, unless that is null, as group number `group`; `progress`
// must outlive the channel. `recorder` records all operations, whose bytes travel by `path`.
struct Setup {
  std::shared_ptr<std::byte> memory;  // the segment's
  int rank;
  std::vector<int> group_ranks, pids;
  Tuning tuning;
  Progress* progress = nullptr;
  Recorder recorder;
  Path path = Path::unknown;
  std::uint32_t group = 0;
  std::uint32_t world = 0;  // ranks of the whole group
  int neighbours = 0;  // ranks on this machine, which share its CPUs
};

class Channel {
 public:
  Channel(const Setup& setup, Hooks hooks);

  int rank() const { return rank_; }
  Progress& progress() { return *progress_; }
  int ranks() const { return ranks_; }
  const Tuning& tuning() const { return tuning_; }
  Segment& segment() { return segment_; }
  // Whether each rank of this machine can have a CPU for itself all the time, as far as this rank knows. After the
  // handshake and settle() all ranks agree.
  bool has_cpu_per_rank() const { return neighbours_ <= cpus_.load(std::memory_order_relaxed); }
  // Whether there is a CPU for each runnable thread at this moment.
  bool threads_have_cpus() const;
  void settle();
  int fan_in() const { return fan_in_; }
  CrossMemory& cross_memory() { return cross_memory_; }
  Regions& regions() { return regions_; }
  // The number of the current or last operation, from 0, which is the barrier of the handshake. Any thread.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  // The deadline of the current operation, as of now().
  double deadline();
  double timeout() const { return timeout_; }
  // For the recording: the time in ticks since which all ranks of this node are known to have entered the current
  // operation, or 0. all_came() notes that all ranks of the group have, as was known at that time.
  std::uint64_t neighbours_came() const { return neighbours_came_; }
  const Recorder& recorder() const { return recorder_; }
  // The current operation has succeeded.
  void succeed() { recorded_.leave(false); }
  const Recorded& recorded() const { return recorded_; }
  void all_came(std::uint64_t time) { recorded_.all_came(time); }
  void all_came() { recorded_.all_came(); }

  // Announces that this rank is about to call the next operation. Returns whether all others have announced or begun
  // it within `patience` seconds; then it needs nothing more from any rank's program.
  bool all_come(double patience);

  // One collective call, which holds the channel from construction to destruction.
  class Operation {
   public:
    // Throws Failure if the group has failed or is busy. timeout in seconds. An operation in the background does not
    // spin where that could keep the program's own threads from running.
    Operation(Channel& channel, const Call& call, double timeout, bool background = false);
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    void acquire(double timeout);

    Channel& channel_;
  };

  // Posts a flag with at most tiny_bytes of payload, and waits for all ranks. Throws Failure or Interrupted, after
  // which the group has failed on all ranks.
  void round(const void* payload = nullptr, std::size_t bytes = 0);
  // A round of all ranks without payload. It has two levels if there are many ranks.
  void barrier();
  // A round in which only this rank waits for the others, which notify().
  void collect(const void* payload = nullptr, std::size_t bytes = 0);
  // Rounds in which this rank waits for no rank, or only for the root. If other ranks called something else, the next
  // round that waits for them finds it.
  void notify(const void* payload = nullptr, std::size_t bytes = 0);
  void notify_all(const void* payload = nullptr, std::size_t bytes = 0);  // to ranks in await_root()
  void await_root(int root);
  // A round after which a rank may change what others read in place. Also throws if a rank failed after it had
  // posted, because that rank may already have changed its own.
  void close_round();
  // The payload that a peer posted with the last round.
  const std::byte* payload(int peer) { return flag(peer, round_).payload; }

  // Waits until no rank still reads the slot that this rank may write next. There must be a round between two blocks.
  void next_block();
  // Like next_block(), but a part of `bytes` may follow the last part of the current block, which ends after `limit`
  // bytes. Then there is nothing to wait for.
  void next_part(std::size_t bytes, std::size_t limit);
  std::byte* slot(int peer) { return segment_.slot(peer, block_ & 1) + part_; }
  // This rank's slot, of which it is going to write `bytes`.
  std::byte* own_slot(std::size_t bytes) {
    segment_.prepare_slot(block_ & 1, part_ + bytes);
    return slot(rank_);
  }

  // For waits elsewhere: throws if the group has failed or the caller is interrupted.
  void check_wait();
  // Peers, as channel ranks, whose process has ended. What they sent may still be there.
  std::vector<int> dead() const;
  // Whether this peer's process has ended.
  bool has_ended(int peer) const { return peers_.has_ended(peer); }
  // Whether this peer's process is ending: none of its threads runs the program any more.
  bool is_ending(int peer) const { return peers_.is_ending(peer); }
  // Whether a signal has stopped the peer's process.
  bool is_stopped(int peer) const { return peers_.is_stopped(peer); }
  // The other processes, and their robust futexes.
  std::vector<Watched> watched();
  // Makes every wait check for failures at once. Any thread; does not block.
  void alarm();
  // The failure to report if this peer has ended, is ending, or has left.
  std::optional<Failure> gone(int peer);
  // Whether a peer has closed the group.
  bool has_left(int peer) { return segment_.area(peer).own.left.load(std::memory_order_acquire) != 0; }
  // A failure of the current operation; `culprit` is a channel rank.
  Failure failure(FailureKind kind, int culprit) const;
  // The ranks of all nodes that are known not to have begun this operation, and those of this node that are stopped
  // in it.
  std::vector<int> absent();
  // Ends the group because the peer's call has `theirs` bytes where this rank's has `own`, and is equal otherwise.
  [[noreturn]] void disagree_on_size(int peer, std::size_t own, std::size_t theirs);
  // Ends the group with this failure and reports it to the other nodes. Throws it, or an earlier failure.
  [[noreturn]] void fail(const Failure& failure);
  // Like fail(), without throwing.
  void end(const Failure& failure);
  // Ends the group with a failure that another node reported; does not throw. Any thread.
  void adopt(const Failure& failure);
  // Whether the group has failed. Any thread.
  bool failed();
  // The failure that ended the group, if any. Not after close().
  std::optional<Failure> cause();
  // Throws cause(), if there is one.
  void check_abort();

  // Whether this process is a fork of the rank's. check_fork() throws Failure if so.
  bool is_fork() const;
  void check_fork() const;
  // Ends every rank's pending and later operations with FailureKind::aborted.
  void abort();
  // Tells the peers that this rank has left. A current operation, in another thread or interrupted by the caller's
  // signal handler, is aborted.
  void close();

 private:
  int cpus_by_quota();
  int ranks_by_cache();
  void begin(const Call& call, double timeout, bool background);
  void refuse_if_ended(const Call& call, bool background);
  void note_refused(const Call& call, bool background);
  Flag& flag(int peer, std::uint64_t round) { return segment_.flags(peer)[round & (num_flags_ - 1)]; }
  void begin_round(std::uint32_t ahead = 0);
  void pass_round();
  void note_unchecked();
  void post(const void* payload, std::size_t bytes);
  void show(Flag& own, const void* payload, std::size_t bytes);
  void wake_sleepers(Flag& own);
  void await_flag(int peer);
  void await_all_flags();
  void await_members();
  void await_last_arrival();
  template <class HasCome>
  bool yield(HasCome has_come);
  void await_release(int leader);
  void release();
  void catch_up(std::uint64_t round);
  void await(int peer);
  // The futex word of the awaited peer.
  std::atomic<std::uint32_t>& word(int peer) {
    Flag& shown = flag(peer, awaited_);
    return awaits_release_ ? shown.released : shown.round;
  }
  bool posted(int peer) { return has_come(word(peer).load(std::memory_order_acquire)); }
  bool has_posted(int peer) { return is_awaited(flag(peer, awaited_).round.load(std::memory_order_acquire)); }
  // Whether a word with this value shows the awaited round or a later one. A release must show exactly this round,
  // because rounds without a release leave an old number in that word.
  bool has_come(std::uint32_t shown) const {
    return awaits_release_ ? shown == static_cast<std::uint32_t>(awaited_) : is_awaited(shown);
  }
  bool is_awaited(std::uint32_t shown) const {
    return static_cast<std::int32_t>(shown - static_cast<std::uint32_t>(awaited_)) >= 0;
  }
  bool spin(int peer);
  bool poll_longer(int peer);
  int last_cpu(int peer);
  bool shares_cpu(int peer);
  void move_away();
  void sleep(int peer);
  void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds);
  void check(int awaited);
  void check_deadline(int awaited);
  void check_peers(int awaited);
  void compare(int peer);
  void compare_past(int peer);
  [[noreturn]] void disagree(int peer);
  bool record(const Failure& failure);
  std::vector<int> not_posted();
  void wake(int peer);

  const unsigned forks_;  // fork_count() when the channel was made
  const int rank_, ranks_;
  const std::vector<int> group_ranks_;
  const Tuning tuning_;
  Segment segment_;  // kept until the end, since other threads may be reading it
  Peers peers_;
  CrossMemory cross_memory_;
  Regions regions_;
  const Hooks hooks_;
  Progress unseen_;
  Progress* const progress_;
  const Recorder recorder_;
  const Path path_;
  Recorded recorded_;  // the operation under way
  bool has_refused_ = false;  // of a call to a group that had failed
  std::uint64_t neighbours_came_ = 0;
  const std::uint32_t group_, world_;
  std::timed_mutex busy_;  // held by the operation under way
  std::atomic<std::thread::id> owner_{};  // the thread of that operation
  std::mutex life_;  // abort() may come from any thread, and needs the segment
  std::atomic<bool> closed_{false};
  bool failed_ = false;  // when it was closed
  std::atomic<int> cpus_;  // CPUs of this machine for its ranks
  const int neighbours_;  // the number of these ranks
  bool spins_ = false;  // while waiting in the current operation
  Crowding crowding_;
  std::atomic<bool> alarmed_{false};  // the next wait must check for failures
  std::atomic<std::atomic<std::uint32_t>*> dozing_on_{nullptr};  // the word that a wait sleeps on
  // Round numbers, of which flags hold the lower half.
  std::uint64_t round_ = 0;
  std::uint64_t awaited_ = 0;  // the round whose flags are awaited
  bool awaits_release_ = false;  // waits for a leader's release instead of its flag
  bool two_levels_ = false;
  int fan_in_ = 1;  // ranks that share a leader, including it
  bool broadcast_wake_ = false;  // the last rank to arrive wakes all others
  std::uint32_t num_flags_ = dedicated_flags;  // flags of each rank in use
  std::uint32_t broadcast_wakes_ = 0;  // rounds so far in which the last rank woke all others
  std::uint64_t passed_ = 0;  // a round that all ranks have posted
  std::uint64_t last_notified_ = 0;  // the last round in which this rank called notify_all()
  std::uint64_t free_[2] = {};  // after all have posted this round, no rank reads this rank's slot any more
  std::uint64_t block_ = 0;
  std::size_t part_ = 0;  // start of the current part in its block
  std::size_t next_part_ = 0;  // start of the next part; 0 if none fits
  // abort() on another thread also reads the next two.
  std::atomic<std::uint64_t> sequence_{~std::uint64_t{0}};
  std::atomic<OpKind> op_{};
  std::uint64_t fingerprint_ = 0;
  double timeout_ = 0, deadline_ = 0;
};

}  // namespace torsh::shm
