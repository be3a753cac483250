/* Parses a request to start a program. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"

struct spawn_head {
  uint32_t id, fds, argc, envc, cpus_size, shares_session;
};

/* Return whether the bytes from `at` to `end` are exactly `count` NUL-terminated strings. */
static bool are_strings(const char *at, const char *end, uint64_t count) {
  for (; at && count; count--)
    if ((at = memchr(at, 0, (size_t)(end - at)))) at++;
  return at == end;
}

/* Return whether exactly what the head announces follows: processors, cwd, argv and envp. */
static bool is_whole(const struct spawn_head *head, const char *rest, size_t size) {
  return head->argc > 0 && head->fds <= MAX_FDS && head->cpus_size <= size &&
         are_strings(rest + head->cpus_size, rest + size, 1 + (uint64_t)head->argc + head->envc);
}

/* Return the argc + envc strings from `at` on, which must exist, as argv and envp, each terminated
 * by NULL. The caller frees the array. Returns NULL if memory runs out. */
static char **split_strings(char *at, uint32_t argc, uint32_t envc) {
  size_t count = (size_t)argc + envc;
  char **strings = calloc(count + 2, sizeof *strings);
  for (size_t i = 0; strings && i < count; i++) {
    strings[i < argc ? i : i + 1] = at;
    at += strlen(at) + 1;
  }
  return strings;
}
