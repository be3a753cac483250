// Engine: moves bytes, and waits for more to come.
#include <algorithm>

#include "messages/turn.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/waiting.hpp"

namespace torsh {
namespace {

constexpr double pause = 0.1;  // seconds without a wait

}  // namespace

void Engine::drive(Lock& lock, Turn& turn, double until, const Finished& finished) {
  Stillness still;
  // Short waits need no check for failures, but many of them in a row do.
  if (now() > looked_ + pause) looked_ = now();
  while (true) {
    const bool moved = poll();
    if (moved && resting_ != 0) changed_.notify_all();
    if (finished() || failure_) return;
    const double time = now();
    if (alarmed_ || time >= looked_ + nap) look_around(lock);
    if (failure_ || time >= until) return;
    if (moved || idle(lock, turn, still, until)) still = Stillness();
    if (turn.lost || finished()) return;
  }
}

// True if something has moved.
bool Engine::idle(Lock& lock, Turn& turn, Stillness& still, double until) {
  const double time = now();
  if (still.since == 0) still.since = time;
  const Idling idling = turn.background ? Idling::sleep : setup_.idling();
  if (idling == Idling::spin && time < still.since + spin_seconds && !is_crowded()) return spin(lock);
  if (idling == Idling::sleep) return sleep(lock, turn, until);
  if (still.yields.are_over()) {
    if (idling != Idling::spin || !polls_longer(turn, time)) return sleep(lock, turn, until);
    still.since = time;
    return false;
  }
  lock.unlock();
  still.yields.once();
  lock.lock();
  return false;
}

// Polls longer once per turn, not for each piece of a slow message.
bool Engine::polls_longer(Turn& turn, double time) {
  if (turn.polls_until == 0) turn.polls_until = time + longest_poll;
  return time < turn.polls_until && !is_crowded() && setup_.threads_have_cpus();
}

bool Engine::spin(Lock& lock) {
  for (int i = 0; i < polls_per_look && !alarmed_; ++i) {
    if (lock_waiters_.load(std::memory_order_relaxed) != 0) yield_lock(lock);
    if (poll()) return true;
    spin_pause();
  }
  return false;
}

void Engine::yield_lock(Lock& lock) {
  lock.unlock();
  Yields yields;
  while (lock_waiters_.load(std::memory_order_relaxed) != 0 && !yields.are_over()) yields.once();
  lock.lock();
}

// Sleeps in the kernel. The background thread gives up its turn before, so that a caller finds it free.
bool Engine::sleep(Lock& lock, Turn& turn, double until) {
  arm();
  setup_.wakeup->begin_sleep();
  const bool moved = poll();
  std::vector<int> ready;
  if (!moved && !failure_ && !alarmed_) {
    ++asleep_;
    turn.lend();
    lock.unlock();
    watch_.wait(ready, std::min(nap, until - now()));
    lock.lock();
    turn.take_back();
    --asleep_;
    eager_ |= ready.empty();
  }
  setup_.wakeup->end_sleep();
  for (const int descriptor : ready) {
    if (descriptor == setup_.wakeup->descriptor()) setup_.wakeup->drain();
    if (descriptor == setup_.alarm) alarmed_ = true;
  }
  return moved;
}

void Engine::arm() {
  watch_.set(setup_.wakeup->descriptor(), tcp::Epoll::readable);
  if (setup_.alarm >= 0) watch_.set(setup_.alarm, tcp::Epoll::readable);
  for (Link& link : links_) {
    const bool eager = eager_ || matcher_.wants(link.peer());
    for (std::size_t lane = 0; lane < link.lanes(); ++lane) {
      if (link.descriptor(lane) < 0) continue;
      link.expect(lane);
      watch_.set(link.descriptor(lane), link.events(lane, eager));
    }
  }
}

bool Engine::poll() {
  if (failure_) return false;
  bool moved = false;
  try {
    if (eager_ || matcher_.wants_any()) {
      for (Link& link : links_) moved |= advance(link);
      return moved;
    }
    for (std::size_t i = 0; i < busy_.size();) {
      Link& link = *busy_[i];
      moved |= advance(link);
      if (is_busy(link)) {
        ++i;
      } else {
        listed_[static_cast<std::size_t>(link.peer())] = false;
        busy_[i] = busy_.back();
        busy_.pop_back();
      }
    }
  } catch (const Failure& found) {
    die(found);
    return true;
  }
  return moved;
}

bool Engine::advance(Link& link) {
  if (link.end() != nullptr) return false;
  bool moved = link.push();
  moved |= link.pull(matcher_, eager_);
  if (link.end() != nullptr) alarmed_ = true;
  note(link);
  return moved;
}

bool Engine::is_busy(const Link& link) const {
  return link.end() == nullptr && (link.is_sending() || link.is_reading() || matcher_.wants_by_name(link.peer()));
}

void Engine::note(Link& link) {
  const auto at = static_cast<std::size_t>(link.peer());
  if (listed_[at] || !is_busy(link)) return;
  listed_[at] = true;
  busy_.push_back(&link);
}

bool Engine::is_crowded() {
  const int cpu = shm::current_cpu();
  const auto here = std::find_if(busy_.begin(), busy_.end(), [&](const Link* link) { return link->peer_cpu() == cpu; });
  const bool is_shared = here != busy_.end();
  if (crowding_.lasts(is_shared) && rank_ > (*here)->peer()) shm::leave_cpus({cpu});
  return is_shared;
}

}  // namespace torsh
