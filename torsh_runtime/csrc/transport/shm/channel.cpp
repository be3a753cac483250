#include "transport/shm/channel.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "common/prefetch.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/shm/futex.hpp"

namespace torsh::shm {
namespace {

constexpr int spin_limit = 2000;
constexpr int yield_limit = 100;
constexpr double yield_limit_seconds = 0.001;  // a yield to a busy stranger may cost a time slice
constexpr int shared_wait_limit = 8;
constexpr double move_interval = 0.01;  // seconds between two moves of one thread
constexpr double nap = 0.02;  // seconds in the kernel between two looks at the peers

// How often this process has been forked off from one that used this library: a fork is no rank.
std::atomic<unsigned> fork_count{0};

unsigned forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });
  (void)registered;
  return fork_count.load(std::memory_order_relaxed);
}

// Monotonic seconds.
double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Failure bare(FailureKind kind, double seconds = 0) {
  Failure found;
  found.kind = kind;
  found.seconds = seconds;
  return found;
}

}  // namespace

std::size_t slot_bytes(const Tuning& tuning) { return std::max(tuning.whole_limit, tuning.block_bytes); }

Channel::Channel(int descriptor, int rank, int ranks, const Tuning& tuning, const std::vector<int>& pids,
                 std::function<bool()> interrupted, Progress* progress, std::uint32_t group)
    : forks_(forks()),
      rank_(rank),
      ranks_(ranks),
      tuning_(tuning),
      segment_(std::in_place, descriptor, rank, ranks, slot_bytes(tuning)),
      peers_(std::in_place, pids),
      interrupted_(std::move(interrupted)),
      progress_(progress != nullptr ? progress : &unseen_),
      group_(group),
      spins_(ranks <= allowed_cpus() ? spin_limit : 0) {}

Channel::Operation::Operation(Channel& channel, const Call& call, double timeout) : channel_(channel) {
  if (channel.forks_ != fork_count.load(std::memory_order_relaxed)) throw bare(FailureKind::forked);
  if (!channel.busy_.try_lock()) acquire(timeout);
  try {
    channel.begin(call, timeout);
  } catch (...) {
    channel.busy_.unlock();
    throw;
  }
  channel.owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

Channel::Operation::~Operation() {
  channel_.progress_->leave(channel_.sequence_.load(std::memory_order_relaxed));
  channel_.owner_.store(std::thread::id(), std::memory_order_relaxed);
  channel_.busy_.unlock();
}

void Channel::Operation::acquire(double timeout) {
  if (channel_.owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    throw bare(FailureKind::nested);
  }
  const double deadline = now() + timeout;
  while (!channel_.busy_.try_lock_for(std::chrono::duration<double>(nap))) {
    if (channel_.interrupted_()) throw Interrupted();
    if (now() > deadline) throw bare(FailureKind::busy, timeout);
  }
}

void Channel::begin(const Call& call, double timeout) {
  if (!segment_) throw bare(FailureKind::closed);
  check_abort();
  segment_->area(rank_).own.call = call;
  fingerprint_ = call.fingerprint();
  op_.store(call.kind, std::memory_order_relaxed);
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  progress_->enter(sequence, call, group_, static_cast<std::uint32_t>(ranks_));
  timeout_ = timeout;
  deadline_ = 0;  // the clock is read when there is something to wait for
}

void Channel::round(const void* payload, std::size_t bytes) {
  progress_->met(++round_);
  post(payload, bytes);
  for (int step = 1; step < ranks_; ++step) {
    const int peer = rank_ + step < ranks_ ? rank_ + step : rank_ + step - ranks_;
    if (!posted(peer) && !spin(peer)) await(peer);
    compare(peer);
  }
  // Ask for the next round's line now: the peers have read it, and the round after this one then
  // begins without waiting for it.
  prefetch_for_write(reinterpret_cast<const std::byte*>(&segment_->area(rank_).flags[(round_ & 1) ^ 1]));
}

void Channel::post(const void* payload, std::size_t bytes) {
  Flag& flag = segment_->area(rank_).flags[round_ & 1];
  flag.cpu.store(static_cast<std::uint16_t>(current_cpu() + 1), std::memory_order_relaxed);
  flag.fingerprint = fingerprint_;
  if (bytes != 0) std::memcpy(flag.payload, payload, bytes);
  flag.round.store(round_, std::memory_order_release);
  // The flag must be out before the sleepers are counted. A fence and not an exchange: that would
  // ask for the line a second time if a spinning peer took it after the stores above.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_->area(rank_).sleepers.count.load(std::memory_order_seq_cst) != 0) futex_wake(flag.round);
}

bool Channel::posted(int peer) {
  const std::uint32_t seen = segment_->area(peer).flags[round_ & 1].round.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(seen - round_) >= 0;
}

bool Channel::spin(int peer) {
  if (spins_ == 0 || shares_cpu(peer)) return false;
  for (int i = 0; i < spins_; ++i) {
    if (posted(peer)) return true;
    spin_pause();
  }
  return posted(peer);
}

int Channel::last_cpu(int peer) {
  return segment_->area(peer).flags[(round_ & 1) ^ 1].cpu.load(std::memory_order_relaxed) - 1;
}

// A peer that last ran on this CPU cannot go on while it is spun on.
bool Channel::shares_cpu(int peer) {
  if (last_cpu(peer) != current_cpu()) {
    shared_waits_ = 0;
    return false;
  }
  if (++shared_waits_ >= shared_wait_limit && rank_ > peer) move_away();
  return true;
}

// Two ranks that hand each other a CPU at every step look cache-hot to the kernel's balancer,
// which then leaves them together for seconds while other CPUs idle. So the higher rank leaves.
void Channel::move_away() {
  shared_waits_ = 0;
  if (now() - moved_ < move_interval) return;
  moved_ = now();
  std::vector<int> occupied;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) occupied.push_back(last_cpu(peer));
  }
  leave_cpus(occupied);
}

void Channel::await(int peer) {
  if (deadline_ == 0) deadline_ = now() + timeout_;
  const double patience = now() + yield_limit_seconds;
  for (int i = 0; i < yield_limit && now() < patience; ++i) {
    sched_yield();
    if (posted(peer)) return;
  }
  while (!posted(peer)) {
    sleep(peer);
    if (posted(peer)) return;
    check();
  }
}

void Channel::sleep(int peer) {
  RankArea& area = segment_->area(peer);
  Flag& flag = area.flags[round_ & 1];
  area.sleepers.count.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = flag.round.load(std::memory_order_seq_cst);
  const bool aborted = segment_->header().aborted_by.load(std::memory_order_seq_cst) != 0;
  if (static_cast<std::int32_t>(seen - round_) < 0 && !aborted) {
    futex_wait(flag.round, seen, std::min(nap, deadline_ - now()));
  }
  area.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
}

void Channel::check() {
  check_abort();
  check_peers();
  if (interrupted_()) {
    abort();
    throw Interrupted();
  }
  if (now() >= deadline_) {
    Failure late = failure(FailureKind::timeout, rank_);
    late.seconds = timeout_;
    late.missing = not_posted();
    if (!late.missing.empty()) fail(late);
  }
}

// A process may well end after its last collective. It is lost only if, after it was seen dead,
// somebody's flag of this round is still missing: then it cannot have passed the round.
void Channel::check_peers() {
  dead_.clear();
  peers_->find_dead(dead_);
  const std::vector<int> missing = not_posted();
  if (missing.empty()) return;
  if (!dead_.empty()) {
    check_abort();  // perhaps by a rank that then ended because of it
    fail(failure(FailureKind::peer_lost, dead_.front()));
  }
  for (const int peer : missing) {
    if (segment_->area(peer).own.left.load(std::memory_order_acquire) != 0 && !posted(peer)) {
      fail(failure(FailureKind::peer_left, peer));
    }
  }
}

std::vector<int> Channel::not_posted() {
  std::vector<int> missing;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_ && !posted(peer)) missing.push_back(peer);
  }
  return missing;
}

void Channel::compare(int peer) {
  if (segment_->area(peer).flags[round_ & 1].fingerprint == fingerprint_) return;
  Failure found = failure(FailureKind::mismatch, peer);
  found.own = segment_->area(rank_).own.call;
  found.other = segment_->area(peer).own.call;
  fail(found);
}

Failure Channel::failure(FailureKind kind, int culprit) const {
  Failure found;
  found.kind = kind;
  found.rank = culprit;
  found.reporter = rank_;
  found.op = op_.load(std::memory_order_relaxed);
  found.sequence = sequence_.load(std::memory_order_relaxed);
  return found;
}

void Channel::fail(const Failure& found) {
  {
    const std::lock_guard<std::mutex> stay(life_);
    record(found);
  }
  check_abort();  // the first cause stands, whoever found it
  throw found;
}

void Channel::record(const Failure& found) {
  std::atomic<std::uint32_t>& aborted_by = segment_->header().aborted_by;
  if (aborted_by.load(std::memory_order_acquire) != 0) return;
  AbortRecord& account = segment_->area(rank_).abort;
  account.kind = found.kind;
  account.rank = found.rank;
  account.op = found.op;
  account.sequence = found.sequence;
  account.seconds = found.seconds;
  account.own = found.own;
  account.other = found.other;
  for (const int rank : found.missing) account.missing[rank / 64] |= 1ull << (rank % 64);
  std::uint32_t none = 0;
  aborted_by.compare_exchange_strong(none, static_cast<std::uint32_t>(rank_) + 1, std::memory_order_seq_cst);
  for (int peer = 0; peer < ranks_; ++peer) wake(peer);
}

void Channel::wake(int peer) {
  for (Flag& flag : segment_->area(peer).flags) futex_wake(flag.round);
}

void Channel::check_abort() {
  const std::uint32_t by = segment_->header().aborted_by.load(std::memory_order_acquire);
  if (by == 0) return;
  const AbortRecord& account = segment_->area(static_cast<int>(by) - 1).abort;
  Failure found;
  found.kind = account.kind;
  found.rank = account.rank;
  found.reporter = static_cast<int>(by) - 1;
  found.op = account.op;
  found.sequence = account.sequence;
  found.seconds = account.seconds;
  found.own = account.own;
  found.other = account.other;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (account.missing[rank / 64] >> (rank % 64) & 1) found.missing.push_back(rank);
  }
  throw found;
}

void Channel::abort() {
  const std::lock_guard<std::mutex> stay(life_);
  if (segment_ && forks_ == fork_count) record(failure(FailureKind::aborted, rank_));
}

void Channel::close() {
  if (forks_ != fork_count) return;
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return abort();
  std::unique_lock<std::timed_mutex> idle(busy_, std::try_to_lock);
  if (!idle) {
    abort();
    idle.lock();
  }
  const std::lock_guard<std::mutex> alone(life_);
  if (!segment_) return;
  segment_->area(rank_).own.left.store(1, std::memory_order_seq_cst);
  wake(rank_);
  segment_.reset();
  peers_.reset();
}

}  // namespace torsh::shm
