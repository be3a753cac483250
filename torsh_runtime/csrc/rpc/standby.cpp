// Hub: finds a leader while no thread serves or waits.
#include <algorithm>
#include <cmath>

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include "common/clock.hpp"
#include "rpc/hub.hpp"

namespace torsh::rpc {
namespace {

constexpr double tick = 500e-6;      // seconds
constexpr unsigned calls_of_look = 8;  // calls begun before the caller reads what has come

}  // namespace

// Passes the lead on when this thread no longer leads.
void Hub::pass_on() {
  if (!resting_.empty() && !is_left_to_servers()) {
    resting_.front()->notify_all();
  } else {
    note_turn();
  }
}

// Notes that this thread has led, or could have, and does not now.
void Hub::note_turn() {
  const double time = now();
  if (calls_.size() > 1 || !requests_.empty()) many_ = time;
  const bool is_frequent = time < turned_ + tick && time < many_ + 10 * tick && announced_ == 0;
  turned_ = time;
  ++turns_;
  if (standing_by_ == 0) return;
  if (is_frequent) {
    disarm();
    start_tick();
  } else {
    arm();
  }
}

// Reads results for a thread that begins many calls, since no other thread does so meanwhile.
void Hub::look_in(Lock& lock) {
  if (has_leader()) return;
  note_turn();
  if (armed_ || turns_ % calls_of_look != 0) return;
  take_in(lock, false);
  if (!has_leader()) pass_on();
}

void Hub::arm() {
  if (armed_) return;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.fd = inner_.descriptor();
  armed_ = epoll_ctl(outer_.number(), EPOLL_CTL_MOD, inner_.descriptor(), &event) == 0;
}

void Hub::disarm() {
  if (!armed_) return;
  epoll_event event{};
  event.data.fd = inner_.descriptor();
  epoll_ctl(outer_.number(), EPOLL_CTL_MOD, inner_.descriptor(), &event);
  armed_ = false;
}

// Starts a tick, after which a thread that stands by checks whether others still return to lead and serve.
void Hub::start_tick() {
  if (ticking_) return;
  itimerspec after{};
  after.it_value.tv_nsec = static_cast<long>(tick * 1e9);
  ticking_ = timerfd_settime(tick_.number(), 0, &after, nullptr) == 0;
  turns_at_tick_ = turns_;
  begun_at_tick_ = begun_;
}

void Hub::end_tick() {
  ticking_ = false;
  if (can_serve()) {
    is_stuck_ = static_cast<double>(begun_ - begun_at_tick_) * short_request < tick;
    if (!is_stuck_) start_tick();
  } else if (!has_leader()) {
    turns_ != turns_at_tick_ ? start_tick() : arm();
  }
}

void Hub::wake_server() {
  if (leader_serves_ && leads()) return;
  if (standing_by_ != 0) wake(standby_wakeup_);
}

// Offers requests: to this thread if it leads to serve, to one that is back soon, or to one that stands by.
void Hub::offer() {
  if (leader_serves_ && leads()) return;
  is_attended() ? start_tick() : wake_server();
}

// Sleeps in the kernel until something comes that no other thread takes, or until this thread is needed. Several may
// sleep; the kernel wakes one of them for each event. Returns whether to continue with what has come.
bool Hub::stand_by(Lock& lock) {
  ++standing_by_;
  if (!has_leader() && !ticking_) arm();
  const double seconds = look_at_deadlines();
  epoll_event ready{};
  int count = 0;
  if (!can_serve() || is_attended()) {
    if (can_serve()) start_tick();
    lock.unlock();
    if (garbage_items_ != 0) collect();
    count = epoll_wait(outer_.number(), &ready, 1, static_cast<int>(std::ceil(std::min(seconds, 1.0) * 1000)));
    lock.lock();
  }
  --standing_by_;
  if (count != 1) return false;
  if (ready.data.fd == tick_.number()) {
    end_tick();
    return can_serve() && !ticking_;
  }
  if (ready.data.fd == standby_wakeup_.number()) {
    drain(standby_wakeup_);
    return false;
  }
  armed_ = false;
  return !has_leader() && take_in(lock, true);
}

// Reads what is there, once. Returns whether there is a request, or a part of a message.
bool Hub::take_in(Lock& lock, bool serves) {
  leader_ = std::this_thread::get_id();
  leader_serves_ = serves;
  const std::uint64_t before = frames_;
  looked_ = now();
  inner_.wait(ready_, 0);
  const std::vector<int> ready = ready_;
  handle(lock, ready);
  if (leads()) {
    leader_serves_ = false;
    leader_ = std::thread::id();
  }
  return frames_ == before || can_serve();
}

}  // namespace torsh::rpc
