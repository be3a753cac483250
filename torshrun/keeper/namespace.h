/* Enters a PID namespace in which the keeper is process 1. When that process dies, for whatever
 * reason, the kernel kills all others in the namespace, which has a /proc of its own. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Return the caller's pid in this /proc, which is the one in the namespace that it was mounted in.
 * Returns 0 if it is unknown. */
static pid_t pid_in(int proc) {
  char text[16] = "";
  return readlinkat(proc, "self", text, sizeof text - 1) > 0 ? (pid_t)atoi(text) : 0;
}

static bool write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  close(fd);
  return ok;
}

/* Keep the user and the group in the new user namespace. */
static bool map_ids(uid_t uid, gid_t gid) {
  char users[64], groups[64];
  snprintf(users, sizeof users, "%u %u 1", (unsigned)uid, (unsigned)uid);
  snprintf(groups, sizeof groups, "%u %u 1", (unsigned)gid, (unsigned)gid);
  return write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", users) && write_file("/proc/self/gid_map", groups);
}

/* Leave the namespaces. Without the privilege, get it from a user namespace. Returns the stage that
 * failed, or 0. */
static uint8_t leave_namespaces(void) {
  uid_t uid = geteuid();
  gid_t gid = getegid();
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) == 0) return 0;
  if (errno != EPERM || unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) < 0) return 'u';
  return map_ids(uid, gid) ? 0 : 'i';
}

/* Mount a new /proc that is not visible outside. Later mounts outside still appear inside. */
static bool mount_proc(void) {
  return mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) == 0 &&
         mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0;
}

/* Continue as process 1 of a new namespace and child of the caller's parent. The caller ends.
 * Returns 0, or the stage that failed: 'p' /proc, 'u' unshare, 'i' id map, 'k' fork, 'm' mount. */
static uint8_t enter_namespace(int proc) {
  if (pid_in(proc) != getpid()) return 'p';
  uint8_t stage = leave_namespaces();
  if (stage) return stage;
  long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
  if (pid < 0) return 'k';
  if (pid > 0) _exit(0);
  return mount_proc() ? 0 : 'm';
}
