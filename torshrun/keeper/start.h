/* From a forked child to a worker's program. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_FDS 8

struct start_failure {
  int32_t error;
  uint8_t stage; /* 'k' fork, 'd' directory, 'x' exec, 'h' other */
};

static _Noreturn void fail_child(int report_fd, uint8_t stage) {
  struct start_failure failure;
  memset(&failure, 0, sizeof failure);
  failure.error = errno;
  failure.stage = stage;
  ssize_t n = write(report_fd, &failure, sizeof failure);
  _exit(n < 0 ? 126 : 127);
}

/* Give the new process exactly the descriptors it was sent, and report_fd until it execs. */
static int arrange_fds(const int *fds, size_t count, int report_fd) {
  int high[MAX_FDS];
  int above = 4 * MAX_FDS;
  int first_free = count > 3 ? (int)count : 3;
  int kept = fcntl(report_fd, F_DUPFD_CLOEXEC, above);
  if (kept < 0) fail_child(report_fd, 'h');
  for (size_t i = 0; i < count; i++)
    if ((high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, above)) < 0) fail_child(kept, 'h');
  for (size_t i = 0; i < count; i++)
    if (dup2(high[i], (int)i) < 0) fail_child(kept, 'h');
  if (dup3(kept, first_free, O_CLOEXEC) < 0) fail_child(kept, 'h');
#ifdef SYS_close_range /* everything is close-on-exec anyway; this also covers inherited leaks */
  syscall(SYS_close_range, (unsigned)first_free + 1, ~0u, 0u);
#endif
  return first_free;
}

/* What a new process is to become. */
struct start {
  const int *fds; /* become its descriptors 0, 1, .. */
  size_t fd_count;
  const char *cwd; /* "" is the parent's */
  char **argv, **envp;
};

/* Run in the forked child of `parent`, which has all signals blocked. If the program cannot be
 * started, writes a struct start_failure to report_fd, which must be close-on-exec. */
static _Noreturn void become_worker(pid_t parent, int report_fd, const struct start *start) {
  sigset_t none;
  setsid();
  for (int signo = 1; signo < NSIG; signo++) signal(signo, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127); /* the parent died before the line above */
  report_fd = arrange_fds(start->fds, start->fd_count, report_fd);
  if (*start->cwd && chdir(start->cwd) < 0) fail_child(report_fd, 'd');
  execve(start->argv[0], start->argv, start->envp);
  fail_child(report_fd, 'x');
}
