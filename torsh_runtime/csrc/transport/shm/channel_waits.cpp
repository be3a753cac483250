// Waiting for peers, and for the channel itself.
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "common/clock.hpp"
#include "common/line_count.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/shm/futex.hpp"
#include "transport/waiting.hpp"

namespace torsh::shm {
namespace {

constexpr double short_nap = 50e-6;
constexpr double left_nap = 4e-6;  // per rank, while the root wakes no rank

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
  const double until = now() + patience;
  Yields yields(std::numeric_limits<int>::max(), std::numeric_limits<int>::max());
  for (int peer = 0; peer < ranks_; ++peer) {
    while (peer != rank_ && !has_come(peer)) {
      if (now() >= until || segment_.header().aborted_by.load(std::memory_order_relaxed) != 0) return false;
      if (!yields.once()) std::this_thread::sleep_for(std::chrono::duration<double>(short_nap));
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

// Polls for longer than spinning and yielding do. Yields do not show whether somebody else wants to run: where each
// session has a share of the CPUs (sched(7), autogroups), they return at once.
bool Channel::poll_longer(int peer) {
  if (!spins_) return false;
  const double until = now() + longest_poll;
  while (now() < until && last_cpu(peer) != current_cpu() && threads_have_cpus()) {
    if (spin(peer)) return true;
  }
  return false;
}

bool Channel::threads_have_cpus() const { return shm::threads_have_cpus(cpus_.load(std::memory_order_relaxed)); }

int Channel::last_cpu(int peer) {
  return flag(peer, round_ - 1).cpu.load(std::memory_order_relaxed) - 1;
}

bool Channel::shares_cpu(int peer) {
  const bool is_shared = last_cpu(peer) == current_cpu();
  if (crowding_.lasts(is_shared) && rank_ > peer) move_away();
  return is_shared;
}

void Channel::move_away() {
  std::vector<int> occupied;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) occupied.push_back(last_cpu(peer));
  }
  leave_cpus(occupied);
}

// Where many ranks share a CPU, each would sleep and be woken for one peer after the other. So the last rank to
// arrive wakes all. The word is only a hint: a rank that wakes up, or is not woken for some time, looks at every
// flag.
void Channel::await_last_arrival() {
  auto& header = segment_.header();
  const std::uint32_t number = ++broadcast_wakes_;
  if (header.arrivals.fetch_add(1) + 1 == number * static_cast<std::uint32_t>(ranks_)) {
    header.opened.store(number);
    futex_wake(header.opened);
    return;
  }
  const auto is_open = [&] { return header.opened.load(std::memory_order_acquire) == number; };
  if (yield(is_open)) return;
  const std::uint32_t seen = header.opened.load();
  if (seen != number && header.aborted_by.load() == 0) sleep_on(header.opened, seen, std::min(nap, deadline() - now()));
}

void Channel::await(int peer) {
  if (yield([&] { return posted(peer); }) || poll_longer(peer)) return;
  for (double checked = now(); !posted(peer);) {
    sleep(peer);
    if (posted(peer)) return;
    check_abort();
    const double time = now();
    const bool is_due = time >= checked + nap / 2 || time >= deadline();  // short sleeps are frequent, and the checks are expensive
    if (!is_due && !alarmed_.exchange(false, std::memory_order_relaxed)) continue;
    check(peer);
    checked = time;
  }
}

// Yields until the flag has come. It ends sooner where there are more ranks than CPUs and yields return at once,
// because the scheduler may not run the ranks that are waited for (sched(7), autogroups).
template <class HasCome>
bool Channel::yield(HasCome has_come) {
  Yields yields(Yields::most, std::max(Yields::most * cpus_.load(std::memory_order_relaxed) / neighbours_, 1));
  while (yields.once()) {
    if (has_come()) return true;
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
    sleep_on(awaited, seen, std::min(left ? left_nap * ranks_ : nap, deadline() - time));
  }
  area.sleepers.count.fetch_sub(1, std::memory_order_seq_cst);
}

// An alarm between this check and the sleep is missed; alarms are repeated.
void Channel::sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds) {
  dozing_on_.store(&word, std::memory_order_seq_cst);
  if (!alarmed_.load(std::memory_order_seq_cst)) futex_wait(word, seen, seconds);
  dozing_on_.store(nullptr, std::memory_order_relaxed);
}

void Channel::alarm() {
  alarmed_.store(true, std::memory_order_seq_cst);
  if (std::atomic<std::uint32_t>* const word = dozing_on_.load(std::memory_order_seq_cst)) futex_wake(*word);
}

}  // namespace torsh::shm
