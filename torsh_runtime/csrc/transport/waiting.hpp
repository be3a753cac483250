// How a rank waits for another one, whatever it listens to. It spins while the other has a CPU of its own, then
// yields, and then sleeps in the kernel, checking for other events in between.
#pragma once

#include <sched.h>

#include "common/clock.hpp"

namespace torsh {

// Seconds of sleep between two checks of peers, deadlines and the caller's signals.
constexpr double nap = 0.02;

// Seconds that a rank spins, and how often between two looks at the clock.
constexpr double spin_seconds = 100e-6;
constexpr int polls_per_look = 64;

// Seconds that it polls instead of sleeping, as long as that keeps nobody from running. A virtual machine takes 60 to
// 100 us to wake it. Ranks that compute the same are 20 to 200 us apart, and more on a host with other guests.
constexpr double longest_poll = 1e-3;

// For loops that wait for another CPU.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Yields until it is time to sleep.
class Yields {
 public:
  static constexpr int most = 100;
  static constexpr double longest = 0.001;  // seconds, as yielding to a busy process may cost a time slice

  // At most `times` yields, of which `immediate` may return at once because nobody else ran.
  explicit Yields(int times = most, int immediate = most) : left_(times), left_immediate_(immediate) {}

  bool are_over() const { return left_ == 0 || left_immediate_ <= 0 || before_ > until_; }

  // Yields, unless it is over.
  bool once() {
    if (are_over()) return false;
    if (until_ == 0) until_ = (before_ = now()) + longest;
    sched_yield();
    const double after = now();
    left_immediate_ -= after - before_ < handover;
    --left_;
    before_ = after;
    return true;
  }

 private:
  static constexpr double handover = 2e-6;  // seconds; a shorter yield has let nobody else run

  int left_, left_immediate_;
  double before_ = 0, until_ = 0;
};

// Two ranks that hand each other a CPU at every step look cache-hot to the kernel's load balancer, which then leaves
// them together for seconds while others idle. So the higher rank moves away.
class Crowding {
 public:
  // Notes whether the awaited rank last ran on this thread's CPU, where it cannot continue while this thread spins.
  // Returns true if that has lasted and one of the two should move.
  bool lasts(bool is_shared) {
    in_row_ = is_shared ? in_row_ + 1 : 0;
    if (in_row_ < limit) return false;
    in_row_ = 0;
    const double time = now();
    if (time - moved_ < interval) return false;
    moved_ = time;
    return true;
  }

 private:
  static constexpr int limit = 8;           // waits in a row
  static constexpr double interval = 0.01;  // seconds between two moves

  int in_row_ = 0;
  double moved_ = 0;
};

}  // namespace torsh
