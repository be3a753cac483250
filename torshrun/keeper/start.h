/* Turns a forked child into a worker's program. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "channel.h"
#include "namespace.h"

/* A message of a new process to the keeper, before it becomes a worker. */
struct note {
  int32_t value; /* with 'p' the pid outside the namespace, else an errno */
  uint8_t stage; /* 'k' fork, 'h' descriptors, 'a' affinity, 'd' directory, 'x' exec; the
                    keeper itself reports 'r' for an invalid request */
};

/* The program that a new process is to become. */
struct start {
  const struct passed *passed; /* become its descriptors 0, 1, .. */
  const char *cpus;            /* bit mask of the processors it may use, in longs */
  size_t cpus_size;            /* 0: those of the parent */
  const char *cwd;             /* empty: the parent's */
  char **argv, **envp;
  bool shares_session; /* with the keeper; otherwise it begins one. It leads a group in any case */
};

/* Values that all new processes share. */
struct start_facts {
  pid_t parent;
  int outer_proc; /* the /proc outside the keeper's namespace; -1 without one */
  struct rlimit files; /* the limit on descriptors */
};

/* Raise the limit, as many workers need many descriptors. Workers get the limit from before. */
static void raise_descriptor_limit(struct rlimit *before) {
  getrlimit(RLIMIT_NOFILE, before);
  struct rlimit most = {before->rlim_max, before->rlim_max};
  setrlimit(RLIMIT_NOFILE, &most);
}

static bool tell(int report_fd, int32_t value, uint8_t stage) {
  struct note note;
  memset(&note, 0, sizeof note);
  note.value = value;
  note.stage = stage;
  return write(report_fd, &note, sizeof note) == sizeof note;
}

static _Noreturn void fail_child(int report_fd, uint8_t stage) {
  _exit(tell(report_fd, errno, stage) ? 127 : 126);
}

/* Duplicate fd to a number above all descriptors of a worker. */
static int copy_above(int fd) {
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 4 * MAX_FDS);
  if (copy < 0 && errno == EINVAL) errno = EMFILE; /* the limit is below that number */
  return copy;
}

/* Give the new process exactly the descriptors that were passed, and report_fd until it execs. */
static int arrange_fds(const struct passed *passed, int report_fd) {
  int high[MAX_FDS];
  int first_free = passed->count > 3 ? (int)passed->count : 3;
  int kept = copy_above(report_fd);
  if (kept < 0) fail_child(report_fd, 'h');
  for (size_t i = 0; i < passed->count; i++)
    if ((high[i] = copy_above(passed->fds[i])) < 0) fail_child(kept, 'h');
  for (size_t i = 0; i < passed->count; i++)
    if (dup2(high[i], (int)i) < 0) fail_child(kept, 'h');
  if (dup3(kept, first_free, O_CLOEXEC) < 0) fail_child(kept, 'h');
#ifdef SYS_close_range /* everything is close-on-exec anyway; this also covers inherited leaks */
  syscall(SYS_close_range, (unsigned)first_free + 1, ~0u, 0u);
#endif
  return first_free;
}

/* Run in a forked child, which has all signals blocked. If the program cannot be started, writes
 * the reason to report_fd, which must be close-on-exec. */
static _Noreturn void become_worker(const struct start_facts *facts, const struct start *start,
                                    int report_fd) {
  sigset_t none;
  if (start->shares_session) setpgid(0, 0);
  else setsid();
  for (int signo = 1; signo < NSIG; signo++) signal(signo, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != facts->parent) _exit(127); /* the parent died before the line above */
  if (facts->outer_proc >= 0) tell(report_fd, pid_in(facts->outer_proc), 'p');
  report_fd = arrange_fds(start->passed, report_fd);
  setrlimit(RLIMIT_NOFILE, &facts->files);
  /* Use the system call, as libc's wrapper may support fewer processors than the machine has. */
  if (start->cpus_size && syscall(SYS_sched_setaffinity, 0, start->cpus_size, start->cpus) < 0)
    fail_child(report_fd, 'a');
  if (*start->cwd && chdir(start->cwd) < 0) fail_child(report_fd, 'd');
  execve(start->argv[0], start->argv, start->envp);
  fail_child(report_fd, 'x');
}
