/* Whether a worker has run for the last time, before its process has ended: the kernel tells that
 * only once its memory is freed, which for some gigabytes is the better part of a second. It has to
 * be looked for: when somebody sends SIGCHLD, as workers do who have noticed that a peer is ending
 * (csrc/transport/shm/vitals.cpp), and now and then for those that nobody watches. */
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

#define LOOK_MS 50     /* between two looks at up to */
#define LOOKED_AT 32   /* workers, in turn: what that costs does not grow further with their number */
#define SOON_MS 2      /* after a signal, between */
#define SOON_LOOKS 5   /* looks at all */
#define PF_EXITING 0x4 /* of the kernel's flags */

struct thread_stat {
  unsigned flags;
  int exit_code; /* as waitpid gives it; 0 as well if it may not be known */
};

/* A field of proc(5)'s list, by its number there, which is more than 2; NULL if it is not there. */
static const char *stat_field(const char *line, int number) {
  const char *at = strrchr(line, ')'); /* the name before it may hold anything */
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

/* The sum of the numbers of all its threads, if all are on their way out; 0 if one is not, or if it
 * cannot be told. */
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

/* A file that tells whether the process has let go of its memory; -1 if there is none. */
static int open_memory(int proc, pid_t pid) {
  char path[32];
  snprintf(path, sizeof path, "%d/statm", pid);
  return openat(proc, path, O_RDONLY | O_CLOEXEC);
}

/* A first thread that has ended by itself has let go of it, too. */
static bool has_let_go(int memory) {
  char size;
  return pread(memory, &size, 1, 0) == 1 && size == '0';
}

/* Whether a process that is a child runs nothing more, and the status with which it ends, which is
 * 0 as well if that may not be known. Threads are looked at twice, as one may have started another
 * between being listed and ending: then they are others. */
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
