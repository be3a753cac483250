/* torsh-keeper: the process that parents every worker of one agent.
 *
 * usage: torsh-keeper SOCKET_FD AGENT_PID
 *
 * TORSH_KEEPER_SCRATCH names a directory to remove at the end; it is no argument because
 * `pkill -f` looks at those.
 *
 * Workers and whatever they leave behind are descendants of the keeper, which is a subreaper. When
 * the agent ends, however it ends, the keeper kills all of them, removes the scratch directory and
 * exits. It never blocks on the agent: reads and writes are buffered and non-blocking.
 *
 * A frame is a u32 length followed by that many bytes, of which the first is the kind. Integers
 * are in the machine's own byte order, packed.
 *
 *   request  'S' spawn    u32 id, u32 fds, u32 argc, u32 envc, NUL-ended: cwd, argv.., env..
 *                         (the fds travel by SCM_RIGHTS with the frame and become 0, 1, ..)
 *            'K' signal   u32 id or ALL, i32 signo               to the worker's process group
 *            'W' sweep    u32 tag, u32 bound in ms               kill everything, wait for it
 *            'A' arm      u64 deadline in ns of CLOCK_BOOTTIME   0 disarms
 *   report   'p' spawned  u32 id, i32 pid
 *            'f' failed   u32 id, i32 errno, u8 stage: 'k' fork, 'd' directory, 'x' exec, 'h' other
 *            'e' exited   u32 id, i32 wait status, u64 peak RSS in KiB
 *            'w' swept    u32 tag, u32 ended, u32 n, n x i32 pid of those that will not die
 *            'd' dead man u32 workers that were alive
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "buffer.h"
#include "children.h"
#include "start.h"

#define ALL UINT32_MAX
#define MAX_FRAME (64u << 20)
#define READ_SIZE 65536
#define KILL_INTERVAL_MS 10
#define LAST_SWEEP_MS 30000

struct worker {
  uint32_t id;
  pid_t pid;
  int exec_fd; /* EOF here means that exec succeeded; -1 once that is known */
};

struct sweep {
  bool active;
  bool silent; /* nobody asked for it, so nobody is told */
  uint32_t tag;
  uint32_t ended;
  int64_t deadline_ms;
};

struct keeper {
  pid_t pid;
  int socket, agent_fd, signal_fd, timer_fd;
  struct buffer in, out;
  int fds[2 * MAX_FDS]; /* in order of arrival: a frame's may come with the end of the one before */
  size_t fd_count;
  struct worker *workers;
  size_t worker_count, worker_capacity;
  struct pollfd *polled;
  struct sweep sweep;
  bool lost; /* the agent is gone, or talks nonsense */
};

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- reports ---- */

static void flush(struct keeper *k) {
  struct buffer *b = &k->out;
  while (b->begin < b->end) {
    ssize_t n = send(k->socket, b->data + b->begin, b->end - b->begin,
                     MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) b->begin += (size_t)n;
    else if (errno == EINTR) continue;
    else {
      if (errno != EAGAIN) k->lost = true;
      return;
    }
  }
}

static void report(struct keeper *k, char kind, const void *body, size_t size) {
  uint32_t length = (uint32_t)size + 1;
  if (!reserve(&k->out, sizeof length + length)) {
    k->lost = true;
    return;
  }
  char *at = k->out.data + k->out.end;
  memcpy(at, &length, sizeof length);
  at[sizeof length] = kind;
  memcpy(at + sizeof length + 1, body, size);
  k->out.end += sizeof length + length;
}

static void report_words(struct keeper *k, char kind, uint32_t a, uint32_t b) {
  uint32_t body[2] = {a, b};
  report(k, kind, body, sizeof body);
}

/* ---- workers ---- */

static void report_failed(struct keeper *k, uint32_t id, struct start_failure failure) {
  char body[9];
  memcpy(body, &id, 4);
  memcpy(body + 4, &failure.error, 4);
  body[8] = (char)failure.stage;
  report(k, 'f', body, sizeof body);
}

/* Find out, and report, whether exec succeeded. */
static void settle_exec(struct keeper *k, struct worker *w) {
  struct start_failure failure;
  ssize_t n = read(w->exec_fd, &failure, sizeof failure);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(w->exec_fd);
  w->exec_fd = -1;
  if (n == (ssize_t)sizeof failure) {
    report_failed(k, w->id, failure);
    w->id = ALL; /* its exit is of no interest */
    return;
  }
  report_words(k, 'p', w->id, (uint32_t)w->pid);
}

static void report_exit(struct keeper *k, struct worker *w, int status, const struct rusage *use) {
  if (w->exec_fd >= 0) settle_exec(k, w);
  if (w->exec_fd >= 0) { /* cannot happen: its only writer is dead */
    close(w->exec_fd);
    w->exec_fd = -1;
  }
  if (w->id == ALL) return;
  char body[16];
  int32_t status32 = status;
  uint64_t peak = (uint64_t)use->ru_maxrss;
  memcpy(body, &w->id, 4);
  memcpy(body + 4, &status32, 4);
  memcpy(body + 8, &peak, 8);
  report(k, 'e', body, sizeof body);
}

/* Reap all that have ended. Returns false when no child is left. */
static bool reap(struct keeper *k) {
  for (;;) {
    int status;
    struct rusage use;
    pid_t pid = wait4(-1, &status, WNOHANG, &use);
    if (pid == 0) return true;
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return false;
    k->sweep.ended++;
    for (size_t i = 0; i < k->worker_count; i++) {
      if (k->workers[i].pid != pid) continue;
      report_exit(k, &k->workers[i], status, &use);
      k->workers[i] = k->workers[--k->worker_count];
      break;
    }
  }
}

static bool add_worker(struct keeper *k, uint32_t id, pid_t pid, int exec_fd) {
  if (k->worker_count == k->worker_capacity) {
    size_t capacity = k->worker_capacity * 2 + 8;
    struct worker *workers = realloc(k->workers, capacity * sizeof *workers);
    if (workers) k->workers = workers;
    struct pollfd *polled = realloc(k->polled, (capacity + 4) * sizeof *polled);
    if (polled) k->polled = polled;
    if (!workers || !polled) return false;
    k->worker_capacity = capacity;
  }
  k->workers[k->worker_count++] = (struct worker){.id = id, .pid = pid, .exec_fd = exec_fd};
  return true;
}

static void launch(struct keeper *k, uint32_t id, const struct start *start) {
  int ends[2] = {-1, -1};
  pid_t pid = -1;
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) pid = fork();
  if (pid == 0) become_worker(k->pid, ends[1], start);
  int error = errno;
  if (ends[1] >= 0) close(ends[1]);
  if (pid < 0) {
    if (ends[0] >= 0) close(ends[0]);
    report_failed(k, id, (struct start_failure){.error = error, .stage = 'k'});
  } else if (!add_worker(k, id, pid, ends[0])) {
    k->lost = true; /* out of memory: end everything, the new process too */
  }
}

/* ---- killing ---- */

/* One pass. What a killed process leaves behind becomes a child of the keeper, so that repeating
 * this until no child is left reaches every descendant. */
static void kill_children(const struct keeper *k) {
  pid_t pids[MAX_CHILDREN];
  for (size_t i = 0; i < k->worker_count; i++) kill(-k->workers[i].pid, SIGKILL);
  size_t n = list_children(k->pid, pids);
  for (size_t i = 0; i < n; i++) kill(pids[i], SIGKILL);
}

static void start_sweep(struct keeper *k, bool silent, uint32_t tag, uint32_t bound_ms) {
  k->sweep = (struct sweep){.active = true, .silent = silent, .tag = tag,
                            .deadline_ms = now_ms() + bound_ms};
  kill_children(k);
}

static void continue_sweep(struct keeper *k, bool any_left) {
  struct { uint32_t tag, ended, n; int32_t pids[MAX_CHILDREN]; } body;
  bool late = now_ms() >= k->sweep.deadline_ms;
  if (any_left) kill_children(k);
  if (any_left && !late) return;
  k->sweep.active = false;
  if (k->sweep.silent) return;
  body.tag = k->sweep.tag;
  body.ended = k->sweep.ended;
  body.n = any_left ? (uint32_t)list_children(k->pid, body.pids) : 0;
  report(k, 'w', &body, (3 + (size_t)body.n) * 4);
}

static void signal_workers(struct keeper *k, uint32_t id, int signo) {
  for (size_t i = 0; i < k->worker_count; i++) {
    struct worker *w = &k->workers[i];
    if (w->id == ALL || (id != ALL && w->id != id)) continue;
    if (kill(-w->pid, signo) < 0) kill(w->pid, signo); /* before its setsid it has no group */
  }
}

/* ---- requests ---- */

/* The string at *at, which must end before `end`; NULL if it does not. Moves *at behind it. */
static char *next_string(char **at, char *end) {
  char *string = *at;
  char *nul = memchr(string, 0, (size_t)(end - string));
  if (!nul) return NULL;
  *at = nul + 1;
  return string;
}

static void drop_fds(struct keeper *k, size_t count) {
  for (size_t i = 0; i < count; i++) close(k->fds[i]);
  k->fd_count -= count;
  memmove(k->fds, k->fds + count, k->fd_count * sizeof *k->fds);
}

static void handle_spawn(struct keeper *k, char *body, size_t size) {
  uint32_t head[4]; /* id, fds, argc, envc */
  char *at = body + sizeof head, *end = body + size;
  bool ok = size >= sizeof head;
  if (ok) memcpy(head, body, sizeof head);
  ok = ok && head[0] != ALL && head[1] <= k->fd_count && head[1] <= MAX_FDS && head[2] > 0 &&
       (uint64_t)head[2] + head[3] < size;
  char **strings = ok ? calloc((size_t)head[2] + head[3] + 2, sizeof *strings) : NULL;
  char *cwd = strings ? next_string(&at, end) : NULL;
  ok = cwd != NULL;
  for (uint32_t i = 0; ok && i < head[2] + head[3]; i++)
    ok = (strings[i < head[2] ? i : i + 1] = next_string(&at, end)) != NULL;
  if (ok) launch(k, head[0], &(struct start){k->fds, head[1], cwd, strings, strings + head[2] + 1});
  else k->lost = true;
  free(strings);
  if (ok) drop_fds(k, head[1]);
}

static void handle_arm(struct keeper *k, uint64_t deadline_ns) {
  struct itimerspec when = {.it_value = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                         .tv_nsec = (long)(deadline_ns % 1000000000)}};
  timerfd_settime(k->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void handle_frame(struct keeper *k, char *frame, size_t size) {
  uint32_t words[2];
  uint64_t deadline;
  char *body = frame + 1;
  bool eight = size - 1 == sizeof words;
  if (eight) memcpy(words, body, sizeof words);
  if (eight) memcpy(&deadline, body, sizeof deadline);
  if (*frame == 'S') handle_spawn(k, body, size - 1);
  else if (*frame == 'K' && eight) signal_workers(k, words[0], (int)words[1]);
  else if (*frame == 'W' && eight) start_sweep(k, false, words[0], words[1]);
  else if (*frame == 'A' && eight) handle_arm(k, deadline);
  else k->lost = true;
}

static void handle_frames(struct keeper *k) {
  struct buffer *b = &k->in;
  uint32_t length;
  while (!k->lost && b->end - b->begin >= sizeof length) {
    memcpy(&length, b->data + b->begin, sizeof length);
    if (length == 0 || length > MAX_FRAME) k->lost = true;
    if (k->lost || b->end - b->begin < sizeof length + length) return;
    handle_frame(k, b->data + b->begin + sizeof length, length);
    b->begin += sizeof length + length;
  }
}

static void take_fds(struct keeper *k, struct msghdr *message) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (k->fd_count < 2 * MAX_FDS) k->fds[k->fd_count++] = fd;
      else close(fd), k->lost = true;
    }
  }
}

static void receive(struct keeper *k) {
  while (!k->lost) {
    union { char space[CMSG_SPACE(MAX_FDS * sizeof(int))]; struct cmsghdr align; } control;
    if (!reserve(&k->in, READ_SIZE)) break;
    struct iovec room = {k->in.data + k->in.end, READ_SIZE};
    struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1,
                             .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(k->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    k->in.end += (size_t)n;
    take_fds(k, &message);
    handle_frames(k);
  }
  k->lost = true;
}

/* ---- the loop ---- */

static void check_dead_man(struct keeper *k) {
  uint64_t expirations;
  if (read(k->timer_fd, &expirations, sizeof expirations) != sizeof expirations) return;
  uint32_t alive = (uint32_t)k->worker_count;
  report(k, 'd', &alive, sizeof alive);
  if (!k->sweep.active) start_sweep(k, true, 0, LAST_SWEEP_MS);
}

static void drain_signals(const struct keeper *k) {
  struct signalfd_siginfo info[8];
  while (read(k->signal_fd, info, sizeof info) > 0) continue;
}

static void wait_for_something(struct keeper *k, size_t watched) {
  struct pollfd *p = k->polled;
  p[0] = (struct pollfd){.fd = k->socket, .events = POLLIN};
  if (k->out.begin < k->out.end) p[0].events |= POLLOUT;
  p[1] = (struct pollfd){.fd = k->agent_fd, .events = POLLIN};
  p[2] = (struct pollfd){.fd = k->signal_fd, .events = POLLIN};
  p[3] = (struct pollfd){.fd = k->timer_fd, .events = POLLIN};
  for (size_t i = 0; i < watched; i++)
    p[4 + i] = (struct pollfd){.fd = k->workers[i].exec_fd, .events = POLLIN};
  if (poll(p, 4 + watched, k->sweep.active ? KILL_INTERVAL_MS : -1) < 0)
    for (size_t i = 0; i < 4 + watched; i++) p[i].revents = 0;
}

static void serve(struct keeper *k) {
  while (!k->lost) {
    size_t watched = k->worker_count;
    wait_for_something(k, watched);
    if (k->polled[1].revents) k->lost = true;
    for (size_t i = 0; i < watched; i++)
      if (k->polled[4 + i].revents) settle_exec(k, &k->workers[i]);
    if (k->polled[0].revents & ~POLLOUT) receive(k); /* before the timer: it may be re-armed */
    check_dead_man(k);
    drain_signals(k);
    bool any_left = reap(k);
    if (k->sweep.active) continue_sweep(k, any_left);
    flush(k);
  }
}

static void kill_everything(struct keeper *k) {
  struct pollfd child = {.fd = k->signal_fd, .events = POLLIN};
  int64_t deadline = now_ms() + LAST_SWEEP_MS;
  do {
    kill_children(k);
    if (!reap(k)) return;
    poll(&child, 1, KILL_INTERVAL_MS);
    drain_signals(k);
  } while (now_ms() < deadline);
}

static int remove_entry(const char *path, const struct stat *s, int kind, struct FTW *walk) {
  (void)s, (void)kind, (void)walk;
  remove(path);
  return 0;
}

static bool prepare(struct keeper *k, char **argv) {
  pid_t agent = (pid_t)atoi(argv[2]);
  sigset_t all, child;
  signal(SIGCHLD, SIG_DFL);
  setsid(); /* fails if the agent has made the session already */
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigfillset(&all); /* blocked, not ignored: a new worker must not lose what it is sent at once */
  sigprocmask(SIG_SETMASK, &all, NULL);
  k->pid = getpid();
  k->socket = atoi(argv[1]);
  k->agent_fd = -1;
#ifdef SYS_pidfd_open
  k->agent_fd = (int)syscall(SYS_pidfd_open, agent, 0); /* close-on-exec by definition */
#endif
  k->signal_fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
  k->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC);
  k->polled = calloc(4, sizeof *k->polled);
  k->lost = getppid() != agent;
  return fcntl(k->socket, F_SETFD, FD_CLOEXEC) == 0 && k->signal_fd >= 0 && k->timer_fd >= 0 &&
         k->polled && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

int main(int argc, char **argv) {
  struct keeper k;
  memset(&k, 0, sizeof k);
  if (argc < 3 || !prepare(&k, argv)) return 2;
  serve(&k);
  kill_everything(&k);
  const char *scratch = getenv("TORSH_KEEPER_SCRATCH");
  if (scratch) nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
  return 0;
}
