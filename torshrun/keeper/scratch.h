/* Removes the job's scratch directory. */
#pragma once
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Open a directory in `parent`, or at a path, unless it is a link. */
static int open_folder(int parent, const char *name) {
  return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Remove the contents of a directory that are on this device, and close it. Entries are opened
 * relative to the descriptor, so that renaming a parent directory cannot redirect this. */
static void empty_folder(int fd, dev_t device) {
  struct stat facts;
  DIR *folder = fstat(fd, &facts) == 0 && facts.st_dev == device ? fdopendir(fd) : NULL;
  if (!folder) {
    close(fd);
    return;
  }
  for (struct dirent *entry; (entry = readdir(folder));) {
    const char *name = entry->d_name;
    if (!strcmp(name, ".") || !strcmp(name, "..") || unlinkat(fd, name, 0) == 0) continue;
    int inner = open_folder(fd, name);
    if (inner >= 0) empty_folder(inner, device);
    unlinkat(fd, name, AT_REMOVEDIR);
  }
  closedir(folder);
}

static void remove_scratch(void) {
  const char *scratch = getenv("TORSH_KEEPER_SCRATCH");
  int fd = scratch ? open_folder(AT_FDCWD, scratch) : -1;
  struct stat facts;
  if (fd < 0) return;
  if (fstat(fd, &facts) == 0) empty_folder(fd, facts.st_dev);
  else close(fd);
  rmdir(scratch);
}
