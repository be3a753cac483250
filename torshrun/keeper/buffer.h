/* A queue of bytes that grows as needed. */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct buffer {
  char *data;
  size_t begin, end, capacity;
};

/* Make room for `room` bytes after `end`. Returns false if memory runs out. */
static bool reserve(struct buffer *b, size_t room) {
  if (b->begin == b->end) b->begin = b->end = 0;
  if (b->capacity - b->end >= room) return true;
  if (b->end > b->begin) memmove(b->data, b->data + b->begin, b->end - b->begin);
  b->end -= b->begin;
  b->begin = 0;
  if (b->capacity - b->end >= room) return true;
  size_t capacity = (b->end + room) * 2;
  char *data = realloc(b->data, capacity);
  if (!data) return false;
  b->data = data;
  b->capacity = capacity;
  return true;
}
