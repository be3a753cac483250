// How a rank waits: for peers, and for the channel itself.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/clock.hpp"
#include "common/line_count.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/shm/futex.hpp"

namespace torsh::shm {
namespace {

constexpr int polls_per_look = 64;  // at the clock
constexpr int yield_limit = 100;
constexpr double handover_seconds = 2e-6;      // a yield that takes less has let nobody else run
constexpr double yield_limit_seconds = 0.001;  // a yield to a busy stranger may cost a time slice
constexpr int shared_wait_limit = 8;
constexpr double move_interval = 0.01;  // seconds between two moves of one thread
constexpr double short_nap = 50e-6;
constexpr double left_nap = 4e-6;  // for each rank, while nobody wakes
constexpr double nap = 0.02;  // seconds in the kernel between two looks at the peers

}  // namespace

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
  for (double checked = now(); !posted(peer);) {
    sleep(peer);
    if (posted(peer)) return;
    check_abort();
    const double time = now();
    if (time < checked + nap / 2 && time < deadline_) continue;  // short naps are many, and the rest is dear
    check(peer);
    checked = time;
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
    const double time = now();
    const bool left = time < area.sleepers.left_until.load(std::memory_order_relaxed);
    futex_wait(awaited, seen, std::min(left ? left_nap * ranks_ : nap, deadline_ - time));
  }
  area.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace torsh::shm
