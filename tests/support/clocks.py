"""Wall clocks that are wrong: a small library that programs load before others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  long status = syscall(SYS_clock_gettime, clock, now);
  const char *ahead = getenv("CLOCK_AHEAD");
  if (status == 0 && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += atol(ahead);
  return (int)status;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec moment;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &moment);
  now->tv_sec = moment.tv_sec;
  now->tv_usec = moment.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec moment;
  clock_gettime(CLOCK_REALTIME, &moment);
  if (now) *now = moment.tv_sec;
  return moment.tv_sec;
}
"""


def wrong_clock_or_skip(folder: Path) -> Path:
    """The library, made in this folder. Skips the test where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler (cc) is needed to make clocks go wrong")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return library


def ahead(library: Path, seconds: int) -> tuple[str, ...]:
    """Variables for a process, and what it starts, whose wall clock is so far ahead. Its monotonic
    clock stays as it is.
    """
    return (f"LD_PRELOAD={library}", f"CLOCK_AHEAD={seconds}")
