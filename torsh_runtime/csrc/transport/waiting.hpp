// How a rank waits for another one, by whatever way that one is to be heard of: it spins where that
// one has a processor of its own, then lets others run, and then sleeps in the kernel, between naps
// looking around for what else may have happened.
#pragma once

#include <sched.h>

#include "common/clock.hpp"

namespace torsh {

// Seconds in the kernel between two looks around: at peers, deadlines and the caller's signals.
constexpr double nap = 0.02;

// Seconds that a rank spins, and how often between two looks at the clock.
constexpr double spin_seconds = 100e-6;
constexpr int polls_per_look = 64;

// Seconds that it goes on to look instead of sleeping, as long as nobody is kept from running by that. A virtual
// machine takes 60 to 100 us to wake it, and ranks that compute the same are 20 to 200 us apart, on a host with other
// guests more.
constexpr double longest_look = 1e-3;

// In a loop that waits for another processor.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Lets others run until it is time to sleep.
class Yields {
 public:
  static constexpr int most = 100;
  static constexpr double longest = 0.001;  // seconds: a yield to a busy stranger may cost a time slice

  // At most so many, of which so many may be in vain, because nobody else ran.
  explicit Yields(int times = most, int in_vain = most) : left_(times), left_in_vain_(in_vain) {}

  bool are_over() const { return left_ == 0 || left_in_vain_ <= 0 || before_ > until_; }

  // Lets others run, unless it is over.
  bool once() {
    if (are_over()) return false;
    if (until_ == 0) until_ = (before_ = now()) + longest;
    sched_yield();
    const double after = now();
    left_in_vain_ -= after - before_ < handover;
    --left_;
    before_ = after;
    return true;
  }

 private:
  static constexpr double handover = 2e-6;  // a yield that takes less has let nobody else run

  int left_, left_in_vain_;
  double before_ = 0, until_ = 0;
};

// Two ranks that hand each other a processor at every step look cache-hot to the kernel's balancer,
// which then leaves them together for seconds while others idle. So the higher rank leaves.
class Crowding {
 public:
  // Notes whether who is waited for last ran on this thread's processor, where it cannot go on while
  // it is spun on. True if that has lasted, and one of the two should go.
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
