#include "transport/shm/channel.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "common/clock.hpp"
#include "common/kernels.hpp"
#include "common/line_count.hpp"
#include "common/pages.hpp"
#include "common/prefetch.hpp"
#include "transport/forks.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/shm/cpu_cache.hpp"
#include "transport/shm/cpu_quota.hpp"
#include "transport/shm/futex.hpp"

namespace torsh::shm {
namespace {

constexpr double left_asleep = 64e-6;  // seconds per rank; a turn of all ranks takes at most as long

}  // namespace

Channel::Channel(const Setup& setup, Hooks hooks)
    : forks_(fork_count()),
      rank_(setup.rank),
      ranks_(static_cast<int>(setup.group_ranks.size())),
      group_ranks_(setup.group_ranks),
      tuning_(setup.tuning),
      segment_(setup.memory, rank_, ranks_, slot_bytes(tuning_)),
      peers_(setup.pids),
      cross_memory_(rank_, setup.pids),
      hooks_(std::move(hooks)),
      progress_(setup.progress != nullptr ? setup.progress : &unseen_),
      recorder_(setup.recorder),
      path_(setup.path),
      group_(setup.group),
      world_(setup.world),
      cpus_(allowed_cpus(segment_.area(rank_).own.cpus)),
      neighbours_(std::max(setup.neighbours, ranks_)) {
  if (tuning_.block_bytes < least_block(ranks_)) {
    throw std::invalid_argument("block_bytes is too small for so many ranks");
  }
  if (const auto quota = recent_cpu_quota()) {
    segment_.area(rank_).own.quota = quota->cpus;
    segment_.area(rank_).own.quota_group = quota->group;
  }
  if (ranks_ >= tuning_.two_levels_from) segment_.area(rank_).own.cache = shared_cache(segment_.area(rank_).own.cpus);
}

Channel::Operation::Operation(Channel& channel, const Call& call, double timeout, bool background)
    : channel_(channel) {
  channel.check_fork();
  if (!channel.busy_.try_lock()) acquire(timeout);
  try {
    channel.begin(call, timeout, background);
  } catch (...) {
    channel.busy_.unlock();
    throw;
  }
  channel.owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const int busy_threads = background ? 2 * channel.neighbours_ : channel.neighbours_;
  channel.spins_ = busy_threads <= channel.cpus_.load(std::memory_order_relaxed);
}

Channel::Operation::~Operation() {
  channel_.recorded_.leave(true);  // unless it has succeeded
  channel_.progress_->leave(channel_.sequence_.load(std::memory_order_relaxed));
  channel_.owner_.store(std::thread::id(), std::memory_order_relaxed);
  channel_.busy_.unlock();
}

// Ranks that are each bound to CPUs of their own have those; others share the CPUs of all.
void Channel::settle() {
  cpu_set_t any;
  CPU_ZERO(&any);
  int sum = 0, least = CPU_SETSIZE;
  for (int rank = 0; rank < ranks_; ++rank) {
    const cpu_set_t& cpus = segment_.area(rank).own.cpus;
    CPU_OR(&any, &any, &cpus);
    sum += CPU_COUNT(&cpus);
    least = std::min(least, CPU_COUNT(&cpus));
  }
  const bool bound = ranks_ > 1 && sum == CPU_COUNT(&any);
  cpus_.store(std::min(bound ? least * neighbours_ : CPU_COUNT(&any), cpus_by_quota()), std::memory_order_relaxed);
  broadcast_wake_ = !has_cpu_per_rank() && ranks_ >= tuning_.broadcast_wake_from;
  num_flags_ = has_cpu_per_rank() ? dedicated_flags : crowded_flags(ranks_);  // there were fewer rounds so far, so their flags keep their places
  two_levels_ = has_cpu_per_rank() && ranks_ >= tuning_.two_levels_from;
  fan_in_ = barrier_fan_in(ranks_, ranks_by_cache());
}

// The number of consecutive ranks that share a cache which the next ones do not; 1 if it varies or is unknown.
int Channel::ranks_by_cache() {
  const auto cache = [this](int rank) { return segment_.area(rank).own.cache; };
  int row = 1;
  while (row < ranks_ && cache(row) == cache(0)) ++row;
  if (row == ranks_) return 1;
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool begins = rank % row == 0;
    if (cache(rank) == 0 || (!begins && cache(rank) != cache(rank - 1))) return 1;
    if (begins && rank != 0 && cache(rank) == cache(rank - 1)) return 1;
  }
  return row;
}

// The CPUs that all ranks of this machine may use at a time, if their limits are shared as on this node.
int Channel::cpus_by_quota() {
  double least = CPU_SETSIZE;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto& own = segment_.area(rank).own;
    if (own.quota_group == 0) continue;
    int sharers = 0;
    for (int peer = 0; peer < ranks_; ++peer) sharers += segment_.area(peer).own.quota_group == own.quota_group;
    least = std::min(least, own.quota * neighbours_ / sharers);
  }
  return static_cast<int>(least);
}

void Channel::begin(const Call& call, double timeout, bool background) {
  if (closed_.load(std::memory_order_relaxed)) throw bare(FailureKind::closed);
  refuse_if_ended(call, background);
  timeout_ = timeout;
  deadline_ = 0;  // the clock is read when a wait begins
  segment_.area(rank_).own.call.show(call);
  fingerprint_ = fingerprint_ * 0x9E3779B97F4A7C15ull + call.fingerprint();  // covers all calls so far
  op_.store(call.kind, std::memory_order_relaxed);
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  segment_.area(rank_).own.sequence.store(sequence, std::memory_order_release);
  progress_->enter(sequence, call, group_, world_);
  neighbours_came_ = ranks_ == 1;
  if (recorder_.is_on()) recorded_.enter(recorder_, Beginning::of(call, sequence, path_, background));
}

// Records the first call that a group refuses because it failed elsewhere. Otherwise this rank would seem never to
// have made it.
[[gnu::cold, gnu::noinline]] void Channel::note_refused(const Call& call, bool background) {
  if (std::exchange(has_refused_, true) || !recorder_.is_on()) return;
  const std::uint64_t sequence = sequence_.load(std::memory_order_relaxed) + 1;
  Recorded refused;
  refused.enter(recorder_, Beginning::of(call, sequence, path_, background));
  refused.leave(true);
}

void Channel::refuse_if_ended(const Call& call, bool background) {
  try {
    check_abort();
  } catch (const Failure&) {
    note_refused(call, background);
    throw;
  }
}

// Notes the end of a round in which this rank waited for all others.
void Channel::pass_round() {
  passed_ = round_;
  if (!recorded_.is_under_way()) return;
  if (static_cast<std::uint32_t>(ranks_) == world_) recorded_.all_came();
  else if (neighbours_came_ == 0) neighbours_came_ = ticks();
}

double Channel::deadline() {
  if (deadline_ == 0) deadline_ = now() + timeout_;
  return deadline_;
}

void Channel::barrier() {
  if (!two_levels_) return round();
  begin_round();
  free_[block_ & 1] = round_ + 1;
  const int leader = rank_ / fan_in_ * fan_in_;
  if (rank_ == leader) {
    await_members();
    post(nullptr, 0);
    for (int other = 0; other < ranks_; other += fan_in_) {
      if (other != rank_) await_flag(other);
    }
    release();
  } else {
    post(nullptr, 0);
    await_release(leader);
  }
  pass_round();
}

void Channel::await_members() {
  const int end = std::min(rank_ + fan_in_, ranks_);
  for (int peer = rank_ + 1; peer < end; ++peer) await_flag(peer);
}

// The leaders compare all calls, so there is nothing left to compare here.
void Channel::await_release(int leader) {
  count_line();
  awaited_ = round_;
  awaits_release_ = true;
  struct Over {
    bool& awaits;
    ~Over() { awaits = false; }
  } over{awaits_release_};
  if (!posted(leader) && !spin(leader)) await(leader);
}

void Channel::release() {
  Flag& own = flag(rank_, round_);
  own.released.store(static_cast<std::uint32_t>(round_), std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_.area(rank_).sleepers.count.load(std::memory_order_seq_cst) != 0) futex_wake(own.released);
}

void Channel::round(const void* payload, std::size_t bytes) {
  begin_round();
  free_[block_ & 1] = round_ + 1;
  post(payload, bytes);
  if (broadcast_wake_) await_last_arrival();
  await_all_flags();
}

void Channel::collect(const void* payload, std::size_t bytes) {
  begin_round();
  free_[block_ & 1] = round_ + 1;
  post(payload, bytes);
  await_all_flags();
}

void Channel::await_all_flags() {
  for (int step = 1; step < ranks_; ++step) await_flag(rank_ + step < ranks_ ? rank_ + step : rank_ + step - ranks_);
  pass_round();
  // Prefetch the next round's line. The peers have read it, so the round after this one begins without waiting for
  // it.
  prefetch_for_write(reinterpret_cast<const std::byte*>(&flag(rank_, round_ + 1)));
}

void Channel::notify(const void* payload, std::size_t bytes) {
  note_unchecked();
  begin_round();
  free_[block_ & 1] = round_ + 1;
  post(payload, bytes);
}

// Where many ranks share CPUs, a woken rank takes the root's CPU and sleeps again after one message. So while such
// rounds follow each other, the root wakes no rank. A rank that goes to sleep has seen the last round's flag and the
// time until which this holds, and polls until then.
void Channel::notify_all(const void* payload, std::size_t bytes) {
  note_unchecked();
  begin_round(1);
  free_[block_ & 1] = round_ + 1;
  const bool follows = last_notified_ + 1 == round_;
  last_notified_ = round_;
  if (!broadcast_wake_ || !follows) return post(payload, bytes);
  std::atomic<double>& left_until = segment_.area(rank_).sleepers.left_until;
  const double until = left_until.load(std::memory_order_relaxed);
  left_until.store(now() + left_asleep * ranks_, std::memory_order_relaxed);
  Flag& own = flag(rank_, round_);
  show(own, payload, bytes);
  if (now() >= until) wake_sleepers(own);
}

void Channel::await_root(int root) {
  note_unchecked();
  begin_round();
  post(nullptr, 0);
  await_flag(root);
  passed_ = std::max(passed_, round_ - flag(root, round_).behind.load(std::memory_order_relaxed));
}

void Channel::note_unchecked() {
  auto& own = segment_.area(rank_).own;
  own.unchecked.show(own.call.look());
  own.unchecked_sequence.store(sequence(), std::memory_order_relaxed);
}

void Channel::next_block() {
  ++block_;
  part_ = next_part_ = 0;
  catch_up(free_[block_ & 1]);
}

void Channel::next_part(std::size_t bytes, std::size_t limit) {
  if (next_part_ != 0 && next_part_ + bytes <= limit) {
    part_ = next_part_;
  } else {
    next_block();
  }
  next_part_ = round_up(part_ + bytes, 128);
}

// All ranks that have posted the next flag have read the one that is about to be overwritten. A root checks one round
// earlier, so that what it knows is enough for the receivers.
void Channel::begin_round(std::uint32_t ahead) {
  progress_->met(++round_);
  if (round_ + ahead - passed_ >= num_flags_) catch_up(round_ - num_flags_ / 2);
}

// Waits until all peers have reached `round`, which this rank has posted itself.
void Channel::catch_up(std::uint64_t round) {
  if (round <= passed_) return;
  awaited_ = round;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    count_line();
    if (!posted(peer) && !spin(peer)) await(peer);
  }
  passed_ = round;
}

void Channel::await_flag(int peer) {
  count_line();
  awaited_ = round_;
  if (!posted(peer) && !spin(peer)) await(peer);
  compare(peer);
}

void Channel::close_round() {
  barrier();
  std::atomic_thread_fence(std::memory_order_acquire);
  check_abort();
}

void Channel::post(const void* payload, std::size_t bytes) {
  Flag& own = flag(rank_, round_);
  show(own, payload, bytes);
  wake_sleepers(own);
}

void Channel::show(Flag& own, const void* payload, std::size_t bytes) {
  own.cpu.store(static_cast<std::uint16_t>(current_cpu() + 1), std::memory_order_relaxed);
  own.behind.store(static_cast<std::uint16_t>(round_ - passed_), std::memory_order_relaxed);
  own.fingerprint.store(fingerprint_, std::memory_order_relaxed);
  if (bytes != 0) std::memcpy(own.payload, payload, bytes);
  own.round.store(static_cast<std::uint32_t>(round_), std::memory_order_release);
  // The flag must be visible before the sleepers are counted. A fence, since an exchange would fetch the line a
  // second time if a spinning peer took it after the stores above.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Channel::wake_sleepers(Flag& own) {
  if (segment_.area(rank_).sleepers.count.load(std::memory_order_seq_cst) != 0) futex_wake(own.round);
}

bool Channel::is_fork() const { return forks_ != fork_count(); }

void Channel::check_fork() const {
  if (is_fork()) throw bare(FailureKind::forked);
}

void Channel::abort() { end(failure(FailureKind::aborted, rank_)); }

void Channel::close() {
  if (is_fork()) return;
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return abort();
  std::unique_lock<std::timed_mutex> idle(busy_, std::try_to_lock);
  if (!idle) {
    abort();
    idle.lock();
  }
  const std::lock_guard<std::mutex> alone(life_);
  if (closed_.exchange(true)) return;
  segment_.area(rank_).own.left.store(1, std::memory_order_seq_cst);
  wake(rank_);
  failed_ = segment_.header().aborted_by.load(std::memory_order_acquire) != 0;
}

bool Channel::failed() {
  const std::lock_guard<std::mutex> stay(life_);
  return closed_ ? failed_ : segment_.header().aborted_by.load(std::memory_order_acquire) != 0;
}

}  // namespace torsh::shm
