/* Preloaded: answers as Linux does with Yama's ptrace_scope 1, where this machine has no Yama. What
 * processes allow stands in files named by their pids, in the directory $YAMA; so does who has read. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void note(const char *what, int pid, int number) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s-%d", getenv("YAMA"), what, pid);
  FILE *file = fopen(path, "w");
  fprintf(file, "%d", number);
  fclose(file);
}

static int allowed_by(int pid) {
  char path[4096];
  int tracer = 0;
  snprintf(path, sizeof path, "%s/allows-%d", getenv("YAMA"), pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%d", &tracer) != 1) tracer = 0;
  fclose(file);
  return tracer;
}

static int parent_of(int pid) {
  char path[64];
  int parent = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%*d (%*[^)]) %*c %d", &parent) != 1) parent = 0;
  fclose(file);
  return parent;
}

static int descends(int pid, int ancestor) {
  while (pid > 0 && pid != ancestor) pid = parent_of(pid);
  return ancestor > 0 && pid == ancestor;
}

static int may_trace(int pid) {
  return pid == getpid() || descends(pid, getpid()) || descends(getpid(), allowed_by(pid));
}

int prctl(int option, ...) {
  va_list list;
  unsigned long a[4];
  va_start(list, option);
  for (int i = 0; i < 4; i++) a[i] = va_arg(list, unsigned long);
  va_end(list);
  if (option != PR_SET_PTRACER) return (int)syscall(SYS_prctl, option, a[0], a[1], a[2], a[3]);
  note("allows", getpid(), (int)a[0]);
  return 0;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long tos, const struct iovec *from,
                         unsigned long froms, unsigned long flags) {
  if (!may_trace(pid)) return errno = EPERM, -1;
  if (pid != getpid()) note("reads", getpid(), pid);
  return syscall(SYS_process_vm_readv, pid, to, tos, from, froms, flags);
}
