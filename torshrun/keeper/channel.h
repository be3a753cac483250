/* The socket to the agent carries frames in both directions, some with descriptors. Nothing here
 * blocks.
 *
 * A frame is a u32 length followed by that many bytes, the first of which is the kind. Integers
 * are in the machine's own byte order, packed.
 */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "buffer.h"

#define MAX_FDS 8
#define MAX_FRAME (64u << 20)
#define READ_SIZE 65536

/* Descriptors that came with one frame: fewer than were sent if there was no room. */
struct passed {
  int fds[MAX_FDS];
  size_t count;
};

struct channel {
  int socket;
  struct buffer in, out;
  struct passed passed[2]; /* they may arrive with the end of the previous frame */
  size_t passed_count;
  bool lost; /* the agent is gone, or has sent an invalid frame */
};

static void flush_reports(struct channel *c) {
  struct buffer *b = &c->out;
  while (b->begin < b->end) {
    ssize_t n = send(c->socket, b->data + b->begin, b->end - b->begin,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) b->begin += (size_t)n;
    else if (errno == EINTR) continue;
    else {
      if (errno != EAGAIN) c->lost = true;
      return;
    }
  }
}

static void report(struct channel *c, char kind, const void *body, size_t size) {
  uint32_t length = (uint32_t)size + 1;
  if (!reserve(&c->out, sizeof length + length)) {
    c->lost = true;
    return;
  }
  char *at = c->out.data + c->out.end;
  memcpy(at, &length, sizeof length);
  at[sizeof length] = kind;
  memcpy(at + sizeof length + 1, body, size);
  c->out.end += sizeof length + length;
}

static void drop_passed(struct channel *c) {
  for (size_t i = 0; i < c->passed[0].count; i++) close(c->passed[0].fds[i]);
  c->passed[0] = c->passed[1];
  c->passed_count--;
}

/* The kernel hands out the descriptors of at most one frame at a time. */
static void take_fds(struct channel *c, struct msghdr *message) {
  struct passed came = {.count = 0};
  bool any = message->msg_flags & MSG_CTRUNC;
  for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m)) {
    if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS) continue;
    any = true;
    came.count = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(came.fds, CMSG_DATA(m), came.count * sizeof(int));
  }
  if (!any) return;
  if (c->passed_count < 2) c->passed[c->passed_count++] = came;
  else c->lost = true; /* the process ends, and closes them */
}

/* Read once. Returns whether there was anything to read. */
static bool read_channel(struct channel *c) {
  union { char space[CMSG_SPACE(MAX_FDS * sizeof(int))]; struct cmsghdr align; } control;
  if (c->lost || !reserve(&c->in, READ_SIZE)) return c->lost = true, false;
  struct iovec room = {c->in.data + c->in.end, READ_SIZE};
  struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1,
                           .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(c->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) return c->lost = true, false;
  c->in.end += (size_t)n;
  take_fds(c, &message);
  return true;
}

/* Return the next complete frame from its kind on, valid until the next read, or NULL. */
static char *next_frame(struct channel *c, size_t *size) {
  struct buffer *b = &c->in;
  uint32_t length;
  if (c->lost || b->end - b->begin < sizeof length) return NULL;
  memcpy(&length, b->data + b->begin, sizeof length);
  if (length == 0 || length > MAX_FRAME) c->lost = true;
  if (c->lost || b->end - b->begin < sizeof length + length) return NULL;
  char *frame = b->data + b->begin + sizeof length;
  b->begin += sizeof length + length;
  *size = length;
  return frame;
}
