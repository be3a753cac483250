/* The job's scratch directory, and its end. */
#pragma once
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A directory in `parent`, or at a path; no link is followed to it. */
static int open_folder(int parent, const char *name) {
  return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Remove what is in a directory, as far as it is on this device, and close it. Entries are found
 * from the descriptor: whoever may rename a parent directory cannot lead this elsewhere. */
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
