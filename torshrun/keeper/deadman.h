/* Implements the dead-man timer, the watchdog over the agent. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ll
#define LATE_NS SECOND_NS
#define MOMENT_NS (2 * SECOND_NS)

struct dead_man {
  int timers[2]; /* of a clock that stops while the machine is suspended, and of one that does
                    not */
  bool counts_suspend;
  int64_t deadline_ns;
};

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static bool make_dead_man(struct dead_man *d) {
  d->timers[0] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  d->timers[1] = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
  return d->timers[0] >= 0 && d->timers[1] >= 0;
}

/* Arm the timer, and cancel an earlier deadline. A deadline of 0 disarms it. */
static void arm(struct dead_man *d, int64_t deadline_ns, bool counts_suspend) {
  struct itimerspec never = {.it_value = {0}};
  struct itimerspec when = {.it_value = {.tv_sec = (time_t)(deadline_ns / SECOND_NS),
                                         .tv_nsec = (long)(deadline_ns % SECOND_NS)}};
  d->deadline_ns = deadline_ns;
  d->counts_suspend = counts_suspend;
  timerfd_settime(d->timers[!counts_suspend], TFD_TIMER_ABSTIME, &never, NULL);
  timerfd_settime(d->timers[counts_suspend], TFD_TIMER_ABSTIME, &when, NULL);
}

/* Return whether the timer has expired. A keeper that sees it late has been stopped itself, and
 * most likely its agent, too (a frozen container): unless that time counts, the agent gets a
 * moment. */
static bool has_fired(struct dead_man *d) {
  uint64_t expirations;
  if (read(d->timers[d->counts_suspend], &expirations, sizeof expirations) < 0) return false;
  bool late = !d->counts_suspend && now_ns() - d->deadline_ns > LATE_NS;
  if (late) arm(d, now_ns() + MOMENT_NS, false);
  return !late;
}
