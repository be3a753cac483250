#include "transport/shm/vitals.hpp"

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

constexpr double pause = 0.001;  // seconds between two tellings of the same news
constexpr int tellings = 3;      // of it: who is about to sleep does not hear the first
constexpr double first_look = 0.0005;  // seconds after which a process is looked at again, then for twice as long
constexpr int most_looks = 12;
constexpr double poll_seconds = 0.005;  // between two looks where the kernel cannot wait for several words

// Of this process, as forks have none of its threads. Never destroyed, as groups may outlive statics.
struct OwnVitals {
  const unsigned forks = fork_count();
  std::mutex mutex;
  std::weak_ptr<Vitals> vitals;
};

// The one that was there before a fork may be locked for ever.
OwnVitals& own_vitals() {
  static std::atomic<OwnVitals*> current{nullptr};
  OwnVitals* found = current.load();
  while (found == nullptr || found->forks != fork_count()) {
    auto made = std::make_unique<OwnVitals>();
    if (current.compare_exchange_strong(found, made.get())) return *made.release();
  }
  return *found;
}

// torsh-keeper looks at its workers then (torshrun/keeper/endings.h), so that their agent learns of it, too.
void rouse_keeper() {
  if (const int keeper = find_keeper()) kill(keeper, SIGCHLD);
}

}  // namespace

// Signs are given by the thread, and from the start.
Vitals::Vitals() : forks_(fork_count()) {
  std::latch adopted(1);
  thread_ = start_thread([&] {
    pthread_setname_np(pthread_self(), "torsh-vitals");
    list_.adopt();
    adopted.count_down();
    watch();
  });
  adopted.wait();
}

Vitals::~Vitals() {
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    is_over_ = true;
    interrupt();
  }
  thread_.join();
}

// Null if there is no thread to be had.
std::shared_ptr<Vitals> Vitals::ours() {
  OwnVitals& here = own_vitals();
  const std::lock_guard<std::mutex> alone(here.mutex);
  std::shared_ptr<Vitals> found = here.vitals.lock();
  if (found) return found;
  try {
    found.reset(new Vitals);
  } catch (const std::system_error&) {
    return nullptr;
  }
  here.vitals = found;
  return found;
}

Vitals::Membership::Membership(LifeSign& own, std::vector<Watched> others, std::function<void()> news)
    : own_(own), others_(std::move(others)), news_(std::move(news)), vitals_(ours()) {
  if (vitals_) vitals_->join(*this);
}

// A fork of the process has no part in it.
Vitals::Membership::~Membership() {
  if (!vitals_) return;
  if (vitals_->forks_ == fork_count()) {
    vitals_->leave(*this);
  } else {
    (void)new std::shared_ptr<Vitals>(std::move(vitals_));
  }
}

void Vitals::join(Membership& member) {
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
    watch.signs.push_back(other.sign);
    is_new |= watch.signs.size() == 1;
  }
  if (is_new) interrupt();
}

// The thread lets go of the signs before this returns, but for the kernel, which would find nothing there.
void Vitals::leave(Membership& member) {
  const std::lock_guard<std::mutex> alone(mutex_);
  std::erase(members_, &member);
  list_.remove(member.own_);
  for (const Watched& other : member.others_) {
    const auto found = watches_.find(other.process->pid());
    if (found == watches_.end()) continue;
    std::erase(found->second.signs, other.sign);
    if (found->second.signs.empty()) watches_.erase(found);
  }
  interrupt();
}

void Vitals::interrupt() {
  ++changes_;
  futex_wake(changes_);
}

void Vitals::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_over_) {
    look();
    const Snapshot seen = snapshot();
    lock.unlock();
    wait(seen);
    lock.lock();
  }
}

void Vitals::look() {
  bool is_news = false;
  for (auto& [pid, watch] : watches_) is_news |= examine(watch);
  if (is_news) tellings_ = tellings;
  if (tellings_ > 0) tell();
  if (is_news) rouse_keeper();
}

// Whether it is news that this process is ending. The sign may be over because its thread is, as when the process
// runs another program now; and other threads of a process that ends take a moment to.
bool Vitals::examine(Watch& watch) {
  if (watch.is_settled) return false;
  std::atomic<std::uint32_t>& word = watch.signs.front()->word;
  if (!watch.is_over) {
    watch.seen = word.load(std::memory_order_acquire);
    watch.is_over = LifeSign::is_over(watch.seen);
    if (!watch.is_over) return false;
    futex_wake(word);  // the kernel wakes one, and others wait for it, too
  }
  const double time = now();
  if (time < watch.again) return false;
  watch.again = time + first_look * static_cast<double>(1u << watch.looks);
  const bool is_ending = watch.process->is_ending() || watch.process->has_ended();
  watch.is_settled = is_ending || ++watch.looks == most_looks;
  return is_ending;
}

void Vitals::tell() {
  --tellings_;
  for (const Membership* member : members_) member->news_();
}

// Of so many processes as the kernel lets a thread wait for, from this one's number on, so that of many each is
// watched by somebody.
Vitals::Snapshot Vitals::snapshot() {
  Snapshot seen{{{&changes_, changes_.load()}}, std::nullopt};
  if (tellings_ > 0) seen.until = now() + pause;
  auto next = watches_.upper_bound(getpid());
  for (std::size_t i = 0; i < watches_.size() && seen.words.size() < most_waited_for; ++i) {
    if (next == watches_.end()) next = watches_.begin();
    const Watch& watch = (next++)->second;
    if (!watch.is_over) seen.words.emplace_back(&watch.signs.front()->word, watch.seen);
    if (watch.is_over && !watch.is_settled) seen.until = std::min(seen.until.value_or(watch.again), watch.again);
  }
  return seen;
}

void Vitals::wait(const Snapshot& seen) {
  if (waits_for_many_ && futex_wait_any(seen.words, seen.until)) return;
  // Where it cannot be done it is not tried again; memory that is no more mapped was let go of meanwhile.
  if (changes_ == seen.words.front().second) waits_for_many_ = false;
  futex_wait(changes_, seen.words.front().second, poll_seconds);
}

}  // namespace torsh::shm
