#include "transport/shm/liveness.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <system_error>

#include "common/clock.hpp"
#include "common/threads.hpp"
#include "transport/forks.hpp"
#include "transport/shm/futex.hpp"
#include "transport/shm/tracer.hpp"

namespace torsh::shm {
namespace {

constexpr double pause = 0.001;  // seconds between two alarms for the same death
constexpr int alarms_per_death = 3;  // a thread that is about to sleep misses the first
constexpr double first_look = 0.0005;  // seconds before a process is examined again, doubled each time
constexpr int most_looks = 12;
constexpr double poll_seconds = 0.005;  // between two looks where the kernel cannot wait on several words

// This process's monitor, as forks have none of its threads. Never destroyed, as groups may outlive statics.
struct OwnMonitor {
  const unsigned forks = fork_count();
  std::mutex mutex;
  std::weak_ptr<LivenessMonitor> monitor;
};

// The parent's may stay locked for ever in a fork.
OwnMonitor& own_monitor() {
  static std::atomic<OwnMonitor*> current{nullptr};
  OwnMonitor* found = current.load();
  while (found == nullptr || found->forks != fork_count()) {
    auto made = std::make_unique<OwnMonitor>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

// Makes torsh-keeper look at its workers (torshrun/keeper/endings.h), so that the agent also learns of the death.
void rouse_keeper() {
  if (const int keeper = find_keeper()) kill(keeper, SIGCHLD);
}

}  // namespace

// The thread owns the futexes, from the start.
LivenessMonitor::LivenessMonitor() : forks_(fork_count()) {
  std::latch adopted(1);
  thread_ = start_thread([&] {
    pthread_setname_np(pthread_self(), "torsh-liveness");
    list_.adopt();
    adopted.count_down();
    watch();
  });
  adopted.wait();
}

LivenessMonitor::~LivenessMonitor() {
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    is_over_ = true;
    interrupt();
  }
  thread_.join();
}

// Returns null if no thread can be started.
std::shared_ptr<LivenessMonitor> LivenessMonitor::ours() {
  OwnMonitor& here = own_monitor();
  const std::lock_guard<std::mutex> alone(here.mutex);
  std::shared_ptr<LivenessMonitor> found = here.monitor.lock();
  if (found) return found;
  try {
    found.reset(new LivenessMonitor);
  } catch (const std::system_error&) {
    return nullptr;
  }
  here.monitor = found;
  return found;
}

LivenessMonitor::Subscription::Subscription(RobustFutex& own, std::vector<Watched> others, std::function<void()> news)
    : own_(own), others_(std::move(others)), news_(std::move(news)), monitor_(ours()) {
  if (monitor_) monitor_->join(*this);
}

// A fork of the process takes no part in it.
LivenessMonitor::Subscription::~Subscription() {
  if (!monitor_) return;
  if (monitor_->forks_ == fork_count()) {
    monitor_->leave(*this);
  } else {
    (void)new std::shared_ptr<LivenessMonitor>(std::move(monitor_));
  }
}

void LivenessMonitor::join(Subscription& member) {
  const std::lock_guard<std::mutex> alone(mutex_);
  members_.push_back(&member);
  list_.add(member.own_);
  bool is_new = false;
  for (const Watched& other : member.others_) {
    Watch& watch = watches_[other.process->pid()];
    if (watch.process != other.process) {
      watch = Watch();
      watch.process = other.process;
    }
    watch.futexes.push_back(other.futex);
    is_new |= watch.futexes.size() == 1;
  }
  if (is_new) interrupt();
}

// The thread no longer uses the futexes when this returns. The kernel may, and finds nothing there.
void LivenessMonitor::leave(Subscription& member) {
  const std::lock_guard<std::mutex> alone(mutex_);
  std::erase(members_, &member);
  list_.remove(member.own_);
  for (const Watched& other : member.others_) {
    const auto found = watches_.find(other.process->pid());
    if (found == watches_.end()) continue;
    std::erase(found->second.futexes, other.futex);
    if (found->second.futexes.empty()) watches_.erase(found);
  }
  interrupt();
}

void LivenessMonitor::interrupt() {
  ++changes_;
  futex_wake(changes_);
}

void LivenessMonitor::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_over_) {
    look();
    const Snapshot seen = snapshot();
    lock.unlock();
    wait(seen);
    lock.lock();
  }
}

void LivenessMonitor::look() {
  bool is_news = false;
  for (auto& [pid, watch] : watches_) is_news |= examine(watch);
  if (is_news) alarms_left_ = alarms_per_death;
  if (alarms_left_ > 0) raise_alarms();
  if (is_news) rouse_keeper();
}

// Whether this process is newly found to be ending. Its futex may be marked because only that thread ended, as when
// the process executes another program. The other threads of an ending process take a moment to exit.
bool LivenessMonitor::examine(Watch& watch) {
  if (watch.is_settled) return false;
  std::atomic<std::uint32_t>& word = watch.futexes.front()->word;
  if (!watch.is_over) {
    watch.seen = word.load(std::memory_order_acquire);
    watch.is_over = RobustFutex::owner_died(watch.seen);
    if (!watch.is_over) return false;
    futex_wake(word);  // the kernel wakes one waiter, and there may be more
  }
  const double time = now();
  if (time < watch.again) return false;
  watch.again = time + first_look * static_cast<double>(1u << watch.looks);
  const bool is_ending = watch.process->is_ending() || watch.process->has_ended();
  watch.is_settled = is_ending || ++watch.looks == most_looks;
  return is_ending;
}

void LivenessMonitor::raise_alarms() {
  --alarms_left_;
  for (const Subscription* member : members_) member->news_();
}

// Waits on as many processes as the kernel allows, from this one's PID on, so that each of many is watched by some
// process.
LivenessMonitor::Snapshot LivenessMonitor::snapshot() {
  Snapshot seen{{{&changes_, changes_.load()}}, std::nullopt};
  if (alarms_left_ > 0) seen.until = now() + pause;
  auto next = watches_.upper_bound(getpid());
  for (std::size_t i = 0; i < watches_.size() && seen.words.size() < most_waited_for; ++i) {
    if (next == watches_.end()) next = watches_.begin();
    const Watch& watch = (next++)->second;
    if (!watch.is_over) seen.words.emplace_back(&watch.futexes.front()->word, watch.seen);
    if (watch.is_over && !watch.is_settled) seen.until = std::min(seen.until.value_or(watch.again), watch.again);
  }
  return seen;
}

void LivenessMonitor::wait(const Snapshot& seen) {
  if (waits_for_many_ && futex_wait_any(seen.words, seen.until)) return;
  // Do not try again where the kernel cannot do it. If memory is no longer mapped, it was released meanwhile.
  if (changes_ == seen.words.front().second) waits_for_many_ = false;
  futex_wait(changes_, seen.words.front().second, poll_seconds);
}

}  // namespace torsh::shm
