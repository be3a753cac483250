/* Which children a process has, according to /proc. */
#pragma once
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define MAX_CHILDREN 1024

static size_t children_listed(pid_t self, pid_t *out) {
  char path[64];
  size_t n = 0;
  int pid;
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", self, self);
  FILE *file = fopen(path, "re");
  if (!file) return SIZE_MAX;
  while (n < MAX_CHILDREN && fscanf(file, "%d", &pid) == 1) out[n++] = pid;
  fclose(file);
  return n;
}

static pid_t parent_of(const char *pid) {
  char path[300], line[512];
  int parent = -1;
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  char *end = strrchr(line, ')'); /* the name before it may hold anything */
  if (end) sscanf(end + 1, " %*c %d", &parent);
  return parent;
}

/* For kernels built without /proc/PID/task/TID/children. */
static size_t children_scanned(pid_t self, pid_t *out) {
  size_t n = 0;
  DIR *proc = opendir("/proc");
  if (!proc) return 0;
  for (struct dirent *entry; n < MAX_CHILDREN && (entry = readdir(proc));)
    if (*entry->d_name >= '1' && *entry->d_name <= '9' && parent_of(entry->d_name) == self)
      out[n++] = atoi(entry->d_name);
  closedir(proc);
  return n;
}

/* Fill `out` with up to MAX_CHILDREN pids of children of `self`, which has one thread; how many. */
static size_t list_children(pid_t self, pid_t *out) {
  size_t n = children_listed(self, out);
  return n == SIZE_MAX ? children_scanned(self, out) : n;
}
