/* The lists of strings that a program is started with. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The string at *at, which must end before `end`; NULL if it does not. Moves *at behind it. */
static char *next_string(char **at, char *end) {
  char *string = *at;
  char *nul = memchr(string, 0, (size_t)(end - string));
  if (!nul) return NULL;
  *at = nul + 1;
  return string;
}

/* The strings from `at` on: *cwd, then those of argv and of envp, each list NULL-ended. NULL if
 * there are too few of them. */
static char **split_strings(char *at, char *end, uint32_t argc, uint32_t envc, char **cwd) {
  size_t count = (size_t)argc + envc;
  char **strings = calloc(count + 2, sizeof *strings);
  bool ok = strings && (*cwd = next_string(&at, end));
  for (size_t i = 0; ok && i < count; i++)
    ok = (strings[i < argc ? i : i + 1] = next_string(&at, end)) != NULL;
  if (ok) return strings;
  free(strings);
  return NULL;
}
