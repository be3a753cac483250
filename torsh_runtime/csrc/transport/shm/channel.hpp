// Rounds over a shared segment: all that the collectives need to know about each other's progress.
//
// In a round every rank posts its flag; most wait for all others' flags, some for one or for none.
// Slots alternate with the blocks: whoever begins block k + 2 after a round of block k + 1 in which it
// waited for all has seen flags that were posted after the last read of block k; so two slots a rank
// are enough and no block needs a closing round. After other rounds it waits until they are there.
// Where ranks are many (tuning.hpp), a barrier is of two levels: a squad's leader waits for its
// squad before it posts, then for the other leaders, and then releases its squad, which waits for that alone.
// A flag's line is written again num_flags_ rounds later, when all have posted a flag after it.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/progress.hpp"
#include "common/recorder.hpp"
#include "transport/shm/peers.hpp"
#include "transport/shm/reach.hpp"
#include "transport/shm/regions.hpp"
#include "transport/shm/segment.hpp"
#include "transport/shm/tuning.hpp"
#include "transport/shm/vitals.hpp"
#include "transport/waiting.hpp"

namespace torsh::shm {

// How a channel takes part in a group that may span several nodes; all may be empty.
struct Hooks {
  // Called now and then while waiting; true ends the wait with Interrupted.
  std::function<bool()> interrupted;
  // Called now and then while waiting: throws Failure if other nodes report one.
  std::function<void()> look_around;
  // Tells the other nodes why the group is dead.
  std::function<void(const Failure&)> announce;
  // Ranks of other nodes that have not begun operation `sequence`.
  std::function<std::vector<int>(std::uint64_t sequence)> absent;
};

// What a channel is made of. `names` are the group's numbers of its ranks, ascending; `pids` their
// processes. `progress`, which must outlive the channel, is where it notes what it does, as the
// group of this number; null is nowhere. `recorder` keeps all operations, whose bytes go by `path`.
struct Setup {
  std::shared_ptr<std::byte> memory;  // the segment's
  int rank;
  std::vector<int> names, pids;
  Tuning tuning;
  Progress* progress = nullptr;
  Recorder recorder;
  Path path = Path::unknown;
  std::uint32_t group = 0;
  std::uint32_t world = 0;  // ranks of the whole group
  int neighbours = 0;       // ranks on this machine, which share its processors
};

class Channel {
 public:
  Channel(const Setup& setup, Hooks hooks);

  int rank() const { return rank_; }
  Progress& progress() { return *progress_; }
  int ranks() const { return ranks_; }
  const Tuning& tuning() const { return tuning_; }
  Segment& segment() { return segment_; }
  // Whether each rank of this machine can have a processor for itself, and may use it all the time.
  // As far as this rank knows; once all have met, and called settle(), they agree.
  bool is_roomy() const { return neighbours_ <= cpus_.load(std::memory_order_relaxed); }
  // Whether there is a processor for each thread that wants to run now; it may change all the time.
  bool threads_have_cpus() const;
  void settle();
  int squad() const { return squad_; }
  Reach& reach() { return reach_; }
  Regions& regions() { return regions_; }
  // The operation under way, or the last one, counted from 0, which is the barrier of the ranks'
  // first meeting. Any thread.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  // When the operation under way has to be over, as of now().
  double deadline();
  double timeout() const { return timeout_; }
  // Of the operation under way, for the recording: since when all ranks of this node are known to have entered it, in
  // ticks, 0 if they are not; and that all of the group have, as was known at that time.
  std::uint64_t neighbours_came() const { return neighbours_came_; }
  const Recorder& recorder() const { return recorder_; }
  // The operation under way is over, and well.
  void succeed() { recorded_.leave(false); }
  const Recorded& recorded() const { return recorded_; }
  void all_came(std::uint64_t time) { recorded_.all_came(time); }
  void all_came() { recorded_.all_came(); }

  // Says that this rank is about to call the next operation. Whether all the others have said so, or
  // begun it, within so many seconds: then it needs no more of anybody's program.
  bool all_come(double patience);

  // One collective call: holds the channel from construction to destruction.
  class Operation {
   public:
    // Throws Failure if the group is dead or not to be had. timeout in seconds. One in the
    // background does not spin where that may keep the program's own threads from working.
    Operation(Channel& channel, const Call& call, double timeout, bool background = false);
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
  // A round in which all ranks do so, without payload: of two levels where they are many.
  void barrier();
  // A round in which this rank alone waits for everybody: the others tell.
  void hear(const void* payload = nullptr, std::size_t bytes = 0);
  // The same, but this rank waits for nobody, or for one peer alone. That others than that one have
  // called something else is found in the next round that waits for them.
  void tell(const void* payload = nullptr, std::size_t bytes = 0);
  void tell_all(const void* payload = nullptr, std::size_t bytes = 0);  // to ranks that listen
  void listen(int teller);
  // A round after which a rank may change what others read in place. Throws as well if one of them
  // failed after it had posted: then it may have changed its own already.
  void close_round();
  // What a peer posted with the round that has just ended.
  const std::byte* payload(int peer) { return flag(peer, round_).payload; }

  // Waits until nobody reads the slot any more that this rank may write from now on. There must be a
  // round between two blocks.
  void next_block();
  // The same, but a part of so many bytes may follow the last part of the block, which ends after `limit` bytes.
  // Then there is nobody to wait for.
  void next_part(std::size_t bytes, std::size_t limit);
  std::byte* slot(int peer) { return segment_.slot(peer, block_ & 1) + part_; }
  // This rank's, so many bytes of which it is to write.
  std::byte* own_slot(std::size_t bytes) {
    segment_.prepare_slot(block_ & 1, part_ + bytes);
    return slot(rank_);
  }

  // For waits elsewhere: throws if the group is dead or the caller interrupted.
  void check_wait();
  // Peers, as channel ranks, whose process has ended. What they sent may still lie there.
  std::vector<int> dead() const;
  // Whether this peer's has.
  bool has_ended(int peer) const { return peers_.has_ended(peer); }
  // Whether it is about to: its program has run for the last time.
  bool is_ending(int peer) const { return peers_.is_ending(peer); }
  // Whether a signal has stopped the peer's process.
  bool is_stopped(int peer) const { return peers_.is_stopped(peer); }
  // The ranks whose processes are others, and where they give signs of life.
  std::vector<Watched> watched();
  // Whoever waits looks around at once. Any thread; does not block.
  void alarm();
  // Says if this peer has ended, is about to, or has left.
  std::optional<Failure> gone(int peer);
  // Whether a peer has closed the group.
  bool has_left(int peer) { return segment_.area(peer).own.left.load(std::memory_order_acquire) != 0; }
  // A failure of the operation under way; `culprit` is a channel rank.
  Failure failure(FailureKind kind, int culprit) const;
  // The ranks, of all nodes, that have not begun the operation that this one is in, as far as they
  // say so; and those of this node that are stopped in it.
  std::vector<int> absent();
  // The peer's call is like this rank's, except that it is of `theirs` bytes where this rank wants
  // `own`: ends the group.
  [[noreturn]] void disagree_on_size(int peer, std::size_t own, std::size_t theirs);
  // Ends the group with this failure, of which other nodes are told, or throws the earlier one.
  [[noreturn]] void fail(const Failure& failure);
  // The same without throwing.
  void end(const Failure& failure);
  // The same for one that another node has told of; does not throw. Any thread.
  void adopt(const Failure& failure);
  // Whether the group is dead. Any thread.
  bool failed();
  // What the group has died of; none if it lives. Not after close().
  std::optional<Failure> cause();
  // Throws that.
  void check_abort();

  // Whether this process was forked off from the rank's; if so, the second throws Failure.
  bool is_fork() const;
  void check_fork() const;
  // Ends every rank's pending and later operations with FailureKind::aborted.
  void abort();
  // Tells the peers that this rank takes part no more. An operation that is under way, in another
  // thread or interrupted by the caller's signal handler, is aborted.
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
  void meet(int peer);
  void meet_all();
  void meet_squad();
  void await_all();
  template <class HasCome>
  bool yield(HasCome has_come);
  void await_release(int leader);
  void release();
  void catch_up(std::uint64_t round);
  void await(int peer);
  // The word of a peer that is waited for.
  std::atomic<std::uint32_t>& word(int peer) {
    Flag& shown = flag(peer, awaited_);
    return awaits_release_ ? shown.released : shown.round;
  }
  bool posted(int peer) { return has_come(word(peer).load(std::memory_order_acquire)); }
  bool has_posted(int peer) { return is_awaited(flag(peer, awaited_).round.load(std::memory_order_acquire)); }
  // Whether a flag that shows this shows the awaited round, or a later one. Rounds that nobody is released
  // from leave an old number there, so of releases it must be this one.
  bool has_come(std::uint32_t shown) const {
    return awaits_release_ ? shown == static_cast<std::uint32_t>(awaited_) : is_awaited(shown);
  }
  bool is_awaited(std::uint32_t shown) const {
    return static_cast<std::int32_t>(shown - static_cast<std::uint32_t>(awaited_)) >= 0;
  }
  bool spin(int peer);
  bool look_on(int peer);
  int last_cpu(int peer);
  bool shares_cpu(int peer);
  void move_away();
  void sleep(int peer);
  void doze(std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds);
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
  const std::vector<int> names_;
  const Tuning tuning_;
  Segment segment_;  // stays until the end: other threads may be looking at it
  Peers peers_;
  Reach reach_;
  Regions regions_;
  const Hooks hooks_;
  Progress unseen_;
  Progress* const progress_;
  const Recorder recorder_;
  const Path path_;
  Recorded recorded_;  // the operation under way
  bool has_refused_ = false;  // a call, as the group had ended
  std::uint64_t neighbours_came_ = 0;
  const std::uint32_t group_, world_;
  std::timed_mutex busy_;  // held by the operation under way
  std::atomic<std::thread::id> owner_{};  // the thread of that operation
  std::mutex life_;        // abort() comes from any thread, and the segment must stay for it
  std::atomic<bool> closed_{false};
  bool failed_ = false;  // when it was closed
  std::atomic<int> cpus_;  // processors of this machine for its ranks
  const int neighbours_;   // that many of them
  bool spins_ = false;  // in a wait of the operation under way
  Crowding crowding_;
  std::atomic<bool> alarmed_{false};  // the next one who waits is to look around
  std::atomic<std::atomic<std::uint32_t>*> dozing_on_{nullptr};  // the word that a wait sleeps on
  // Rounds, of which flags hold the lower half.
  std::uint64_t round_ = 0;
  std::uint64_t awaited_ = 0;   // that of the flags that are waited for
  bool awaits_release_ = false; // of a leader, instead of its flag
  bool two_levels_ = false;
  int squad_ = 1;  // ranks that have a leader in common
  bool gathers_ = false;  // in rounds of all
  std::uint32_t num_flags_ = roomy_flags;  // of each rank, in use
  std::uint32_t gatherings_ = 0;  // rounds of all in which one rank opens the gate
  std::uint64_t passed_ = 0;    // one that everybody has posted
  std::uint64_t told_ = 0;      // the last one in which this rank told all
  std::uint64_t free_[2] = {};  // once posted by all, nobody reads this rank's slot any more
  std::uint64_t block_ = 0;
  std::size_t part_ = 0;       // where the present one begins in its block
  std::size_t next_part_ = 0;  // where another may begin; 0 if none may
  // This and the next are also read by abort() on another thread.
  std::atomic<std::uint64_t> sequence_{~std::uint64_t{0}};
  std::atomic<OpKind> op_{};
  std::uint64_t fingerprint_ = 0;
  double timeout_ = 0, deadline_ = 0;
};

}  // namespace torsh::shm
