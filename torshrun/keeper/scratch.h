/* The job's scratch directory, and its end. */
#pragma once
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *walk) {
  (void)s, (void)kind, (void)walk;
  remove(path);
  return 0;
}

static void remove_scratch(void) {
  const char *scratch = getenv("TORSH_KEEPER_SCRATCH");
  if (scratch) nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
