/* Detects that a worker will run no more, before its process has ended. The kernel reports the end
 * only once the memory is freed, which takes the better part of a second for some gigabytes. So the
 * keeper looks at its workers: when it gets SIGCHLD, which workers also send if they notice that a
 * peer is ending (csrc/transport/shm/liveness.cpp), and from time to time, as not all are watched. */
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "children.h"

#define LOOK_MS 50     /* between two looks */
#define LOOKED_AT 32   /* workers at most in one look, in turn, which bounds its cost */
#define SOON_MS 2      /* between two looks after a signal */
#define SOON_LOOKS 5   /* looks at all workers after a signal */
#define PF_EXITING 0x4 /* a flag of the kernel */

struct thread_stat {
  unsigned flags;
  int exit_code; /* as in waitpid; also 0 if it may not be read */
};

/* Return a field of a stat line by its number in proc(5), which is more than 2, or NULL. */
static const char *stat_field(const char *line, int number) {
  const char *at = strrchr(line, ')'); /* the name before it may contain anything */
  for (int field = 2; at && field < number; field++) at = strchr(at + 1, ' ');
  return at;
}

static bool read_thread(int proc, const char *path, struct thread_stat *out) {
  char line[1024];
  FILE *file = open_in(proc, path);
  if (!file) return false;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  const char *flags = stat_field(line, 9), *code = stat_field(line, 52);
  return flags && code && sscanf(flags, "%u", &out->flags) == 1 &&
         sscanf(code, "%d", &out->exit_code) == 1;
}

/* Return the sum of the ids of all its threads if all are exiting. Returns 0 if one is not, or if
 * that is unknown. */
static uint64_t exiting_threads(int proc, pid_t pid) {
  char path[300];
  struct thread_stat thread;
  uint64_t sum = 0;
  bool all = true;
  snprintf(path, sizeof path, "%d/task", pid);
  int fd = openat(proc, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) return 0;
  for (struct dirent *entry; all && (entry = readdir(folder));) {
    if (*entry->d_name == '.') continue;
    snprintf(path, sizeof path, "%d/task/%s/stat", pid, entry->d_name);
    all = read_thread(proc, path, &thread) && thread.flags & PF_EXITING;
    sum += strtoull(entry->d_name, NULL, 10);
  }
  closedir(folder);
  return all ? sum : 0;
}

/* Open a file that shows whether the process has released its memory. Returns -1 if it fails. */
static int open_memory(int proc, pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "%d/statm", pid);
  return openat(proc, path, O_RDONLY | O_CLOEXEC);
}

/* Return whether the memory is released. That also holds if only the first thread has ended. */
static bool has_let_go(int memory) {
  char size;
  return pread(memory, &size, 1, 0) == 1 && size == '0';
}

/* Return whether a child process runs nothing more. Sets `status` to its wait status, which is also
 * 0 if it may not be read. The threads are read twice, as one may have started another between
 * being listed and ending: then their sum differs. */
static bool is_ending(int proc, pid_t pid, int32_t *status) {
  char path[32];
  struct thread_stat first;
  snprintf(path, sizeof path, "%d/stat", pid);
  uint64_t threads = exiting_threads(proc, pid);
  if (!threads || exiting_threads(proc, pid) != threads) return false;
  if (!read_thread(proc, path, &first)) return false;
  *status = first.exit_code;
  return true;
}
