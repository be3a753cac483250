/* Lists the children of a process from a /proc. */
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_CHILDREN 1024

static FILE *open_in(int proc, const char *path) {
  int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? NULL : fdopen(fd, "r");
}

static size_t children_listed(int proc, pid_t self, pid_t *out) {
  char path[64];
  size_t n = 0;
  int pid;
  snprintf(path, sizeof path, "%d/task/%d/children", self, self);
  FILE *file = open_in(proc, path);
  if (!file) return SIZE_MAX;
  while (n < MAX_CHILDREN && fscanf(file, "%d", &pid) == 1) out[n++] = pid;
  fclose(file);
  return n;
}

static pid_t parent_of(int proc, const char *pid) {
  char path[300], line[512];
  int parent = -1;
  snprintf(path, sizeof path, "%s/stat", pid);
  FILE *file = open_in(proc, path);
  if (!file) return -1;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  char *end = strrchr(line, ')'); /* the name before it may contain anything */
  if (end) sscanf(end + 1, " %*c %d", &parent);
  return parent;
}

/* Scan /proc, for kernels built without /proc/PID/task/TID/children. */
static size_t children_scanned(int proc, pid_t self, pid_t *out) {
  size_t n = 0;
  int fd = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd < 0 ? NULL : fdopendir(fd);
  if (!folder) return 0;
  for (struct dirent *entry; n < MAX_CHILDREN && (entry = readdir(folder));)
    if (*entry->d_name >= '1' && *entry->d_name <= '9' && parent_of(proc, entry->d_name) == self)
      out[n++] = atoi(entry->d_name);
  closedir(folder);
  return n;
}

/* Fill `out` with up to MAX_CHILDREN pids of children of `self`, which has one thread. Returns
 * their number. The pids are those in this /proc. */
static size_t list_children(int proc, pid_t self, pid_t *out) {
  size_t n = children_listed(proc, self, out);
  return n == SIZE_MAX ? children_scanned(proc, self, out) : n;
}
