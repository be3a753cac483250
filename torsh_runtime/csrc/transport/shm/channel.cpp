#include "transport/shm/channel.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "common/clock.hpp"
#include "common/kernels.hpp"
#include "common/line_count.hpp"
#include "common/pages.hpp"
#include "common/prefetch.hpp"
#include "transport/forks.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/shm/cpu_quota.hpp"
#include "transport/shm/futex.hpp"

namespace torsh::shm {
namespace {

constexpr int polls_per_look = 64;  // at the clock
constexpr int yield_limit = 100;
constexpr double handover_seconds = 2e-6;    // a yield that takes less has let nobody else run
constexpr double yield_limit_seconds = 0.001;  // a yield to a busy stranger may cost a time slice
constexpr int shared_wait_limit = 8;
constexpr double move_interval = 0.01;  // seconds between two moves of one thread
constexpr double short_nap = 50e-6;
constexpr double nap = 0.02;  // seconds in the kernel between two looks at the peers

}  // namespace

Channel::Channel(const Setup& setup, Hooks hooks)
    : forks_(fork_count()),
      rank_(setup.rank),
      ranks_(static_cast<int>(setup.names.size())),
      names_(setup.names),
      tuning_(setup.tuning),
      segment_(setup.memory, rank_, ranks_, slot_bytes(tuning_)),
      peers_(setup.pids),
      reach_(rank_, setup.pids),
      hooks_(std::move(hooks)),
      progress_(setup.progress != nullptr ? setup.progress : &unseen_),
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
}

Channel::Operation::Operation(Channel& channel, const Call& call, double timeout, bool background)
    : channel_(channel) {
  channel.check_fork();
  if (!channel.busy_.try_lock()) acquire(timeout);
  try {
    channel.begin(call, timeout);
  } catch (...) {
    channel.busy_.unlock();
    throw;
  }
  channel.owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  const int busy_threads = background ? 2 * channel.neighbours_ : channel.neighbours_;
  channel.spins_ = busy_threads <= channel.cpus_.load(std::memory_order_relaxed);
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
    if (channel_.hooks_.interrupted()) throw Interrupted();
    if (now() > deadline) throw bare(FailureKind::busy, timeout);
  }
}

// Ranks that are bound each to their own processors have those; others share what all of them have.
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
  num_flags_ = is_roomy() ? roomy_flags : num_flags;  // there were fewer rounds so far: their flags keep their places
  gathers_ = !is_roomy() && ranks_ >= tuning_.gathering_from;
  two_levels_ = is_roomy() && ranks_ >= tuning_.two_levels_from;
}

// That all ranks of this machine may use at a time if they share limits as those of this node do.
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

void Channel::begin(const Call& call, double timeout) {
  if (closed_.load(std::memory_order_relaxed)) throw bare(FailureKind::closed);
  check_abort();
  timeout_ = timeout;
  deadline_ = 0;  // the clock is read when there is something to wait for
  segment_.area(rank_).own.call.show(call);
  fingerprint_ = fingerprint_ * 0x9E3779B97F4A7C15ull + call.fingerprint();  // that of all calls so far
  op_.store(call.kind, std::memory_order_relaxed);
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  segment_.area(rank_).own.sequence.store(sequence, std::memory_order_release);
  progress_->enter(sequence, call, group_, world_);
}

bool Channel::all_come(double patience) {
  const std::uint64_t next = sequence() + 1;
  segment_.area(rank_).own.coming.store(next, std::memory_order_release);
  const auto has_come = [&](int peer) {
    const auto& own = segment_.area(peer).own;
    return own.coming.load(std::memory_order_acquire) >= next || own.sequence.load(std::memory_order_acquire) >= next;
  };
  const double began = now();
  for (int peer = 0; peer < ranks_; ++peer) {
    while (peer != rank_ && !has_come(peer)) {
      const double lasted = now() - began;
      if (lasted >= patience || segment_.header().aborted_by.load(std::memory_order_relaxed) != 0) return false;
      if (lasted < yield_limit_seconds) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::duration<double>(short_nap));
      }
    }
  }
  return true;
}

double Channel::deadline() {
  if (deadline_ == 0) deadline_ = now() + timeout_;
  return deadline_;
}

void Channel::barrier() {
  if (!two_levels_) return round();
  begin_round();
  free_[block_ & 1] = round_ + 1;
  const int size = squad_size(ranks_), leader = rank_ / size * size;
  if (rank_ == leader) {
    meet_squad();
    post(nullptr, 0);
    for (int other = 0; other < ranks_; other += size) {
      if (other != rank_) meet(other);
    }
    release();
  } else {
    post(nullptr, 0);
    await_release(leader);
  }
  passed_ = round_;
}

void Channel::meet_squad() {
  const int end = std::min(rank_ + squad_size(ranks_), ranks_);
  for (int peer = rank_ + 1; peer < end; ++peer) meet(peer);
}

// All calls are compared by the leaders, so nothing is left to compare.
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
  if (gathers_) await_all();
  meet_all();
}

void Channel::hear(const void* payload, std::size_t bytes) {
  begin_round();
  free_[block_ & 1] = round_ + 1;
  post(payload, bytes);
  meet_all();
}

void Channel::meet_all() {
  for (int step = 1; step < ranks_; ++step) meet(rank_ + step < ranks_ ? rank_ + step : rank_ + step - ranks_);
  passed_ = round_;
  // Ask for the next round's line now: the peers have read it, and the round after this one then
  // begins without waiting for it.
  prefetch_for_write(reinterpret_cast<const std::byte*>(&flag(rank_, round_ + 1)));
}

void Channel::tell(const void* payload, std::size_t bytes) {
  note_unchecked();
  begin_round();
  free_[block_ & 1] = round_ + 1;
  post(payload, bytes);
}

void Channel::listen(int teller) {
  note_unchecked();
  begin_round();
  post(nullptr, 0);
  meet(teller);
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

// The flag that is to be written now has been read by all who have posted the next one after it.
void Channel::begin_round() {
  progress_->met(++round_);
  if (round_ - passed_ >= num_flags_) catch_up(round_ - num_flags_ / 2);
}

// Until everybody has posted a round that this rank has posted itself.
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

void Channel::meet(int peer) {
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
  own.cpu.store(static_cast<std::uint16_t>(current_cpu() + 1), std::memory_order_relaxed);
  own.fingerprint = fingerprint_;
  if (bytes != 0) std::memcpy(own.payload, payload, bytes);
  own.round.store(static_cast<std::uint32_t>(round_), std::memory_order_release);
  // The flag must be out before the sleepers are counted. A fence and not an exchange: that would
  // ask for the line a second time if a spinning peer took it after the stores above.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (segment_.area(rank_).sleepers.count.load(std::memory_order_seq_cst) != 0) futex_wake(own.round);
}

bool Channel::spin(int peer) {
  if (!spins_ || shares_cpu(peer)) return false;
  double until = 0;
  for (double time = 0; time <= until; time = now()) {
    for (int i = 0; i < polls_per_look; ++i) {
      if (posted(peer)) return true;
      spin_pause();
    }
    if (until == 0) until = now() + spin_seconds;
  }
  return posted(peer);
}

int Channel::last_cpu(int peer) {
  return flag(peer, round_ - 1).cpu.load(std::memory_order_relaxed) - 1;
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

// Where many ranks share a processor each would sleep and be woken for one peer after the other. So the last
// one to come wakes all. That is a hint: who is woken, or not for some time, looks at every flag.
void Channel::await_all() {
  auto& header = segment_.header();
  const std::uint32_t number = ++gatherings_;
  if (header.arrivals.fetch_add(1) + 1 == number * static_cast<std::uint32_t>(ranks_)) {
    header.opened.store(number);
    futex_wake(header.opened);
    return;
  }
  const auto is_open = [&] { return header.opened.load(std::memory_order_acquire) == number; };
  if (yield(is_open)) return;
  const std::uint32_t seen = header.opened.load();
  if (seen != number && header.aborted_by.load() == 0) futex_wait(header.opened, seen, std::min(nap, deadline() - now()));
}

void Channel::await(int peer) {
  if (yield([&] { return posted(peer); })) return;
  while (!posted(peer)) {
    sleep(peer);
    if (posted(peer)) return;
    check(peer);
  }
}

// Lets others run until it has come. Not for long, and less so where there are more ranks than processors and
// nobody runs meanwhile: the scheduler may not let those run that are waited for (sched(7), autogroups).
template <class HasCome>
bool Channel::yield(HasCome has_come) {
  const double until = std::min(deadline(), now() + yield_limit_seconds);
  const int most_in_vain = std::max(yield_limit * cpus_.load(std::memory_order_relaxed) / neighbours_, 1);
  int in_vain = 0;
  double before = now();
  for (int i = 0; i < yield_limit && in_vain < most_in_vain && before < until; ++i) {
    sched_yield();
    if (has_come()) return true;
    const double after = now();
    in_vain += after - before < handover_seconds;
    before = after;
  }
  return has_come();
}

void Channel::sleep(int peer) {
  RankArea& area = segment_.area(peer);
  std::atomic<std::uint32_t>& awaited = word(peer);
  area.sleepers.count.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = awaited.load(std::memory_order_seq_cst);
  const bool aborted = segment_.header().aborted_by.load(std::memory_order_seq_cst) != 0;
  if (!has_come(seen) && !aborted) {
    futex_wait(awaited, seen, std::min(nap, deadline_ - now()));
  }
  area.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
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
