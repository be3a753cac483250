/* torsh-keeper: the parent process of every worker of one agent.
 *
 * usage: torsh-keeper SOCKET_FD AGENT_PID [namespace]
 *
 * TORSH_KEEPER_SCRATCH names a directory to remove at the end. It is not an argument, because
 * `pkill -f` matches arguments.
 *
 * Workers and processes that they leave behind are descendants of the keeper, which is a subreaper.
 * When the agent ends for any reason, the keeper kills all of them, removes the scratch directory
 * and exits. It never blocks on the agent: reads and writes are buffered and non-blocking.
 *
 * With `namespace` it first becomes process 1 of a PID namespace. Then they end even if agent and
 * keeper are killed at the same moment. All pids that it reports are those outside the namespace.
 *
 * Frames are described in channel.h. A request or report is
 *
 *   request  'S' spawn    u32 id, u32 fds, u32 argc, u32 envc, u32 n, n bytes of processors,
 *                         NUL-ended: cwd, argv.., env..
 *                         (the fds travel by SCM_RIGHTS with the frame and become 0, 1, ..)
 *            'P' park     the same, for a process that waits to become a worker
 *            'O' own      u32 id, i32 pid, i32 pid outside the namespace
 *                         that child of the keeper waits to become a worker, too
 *            'T' take     u32 id, u32 0                    it is a worker from now on
 *            'K' signal   u32 id or ALL, i32 signo         signal the worker's process group
 *            'N' notify   u32 id or ALL, i32 signo         signal the worker's process alone
 *            'W' sweep    u32 tag, u32 bound in ms         kill all that are not parked, wait for it
 *            'L' list     u32 tag, u32 0                   name all that are not parked
 *            'A' arm      u64 deadline in ns, u32 clock    0 disarms
 *                         (clock 0 is CLOCK_MONOTONIC, 1 is CLOCK_BOOTTIME)
 *   report   'n' inside   i32 pid, i32 errno, u8 stage     first of all, in a namespace; see there
 *            'p' spawned  u32 id, i32 pid
 *            'f' failed   u32 id, i32 errno, u8 stage      for the stages see start.h
 *            'x' ending   u32 id, i32 wait status          runs nothing more; sent if there are two
 *                         or more workers, unless it ends before or its status is 0 or unknown
 *            'e' exited   u32 id, i32 wait status, u64 peak RSS in KiB
 *            'w' swept    u32 tag, u32 n, n x i32 pid of those that have not died
 *            'l' left     u32 tag, u32 n, n x i32 pid        of children that are not parked
 *            'd' dead man
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel.h"
#include "children.h"
#include "deadman.h"
#include "endings.h"
#include "namespace.h"
#include "scratch.h"
#include "spawn_request.h"
#include "start.h"

#define ALL UINT32_MAX
#define KILL_INTERVAL_MS 10
#define LAST_SWEEP_MS 30000

enum { SOCKET, AGENT, CHILDREN, TIMER, BOOT_TIMER, WATCHED }; /* what poll looks at */

struct worker {
  uint32_t id;
  pid_t pid;
  pid_t outer_pid; /* its pid outside the namespace */
  int exec_fd;     /* EOF here means that exec succeeded; -1 once that is known */
  bool parked;     /* waits to become a worker; sweeps and signals for all leave it alone */
  int memory_fd;   /* see endings.h; -1 when there is nothing to look for */
};

struct sweep {
  bool active;
  bool silent; /* it was not requested, so it is not reported */
  uint32_t tag;
  int64_t deadline_ns;
};

struct keeper {
  struct start_facts facts;
  bool inside; /* a PID namespace of its own, as process 1 */
  int proc;    /* the /proc outside the namespace */
  pid_t self;  /* the keeper's pid in that /proc */
  int own_proc; /* the /proc inside the namespace */
  int agent_fd, signal_fd;
  struct channel channel;
  struct dead_man dead_man;
  struct worker *workers;
  size_t worker_count, worker_capacity;
  struct pollfd *polled;
  struct sweep sweep;
  size_t looked_at; /* the worker before which the next look for endings begins */
  int64_t next_look_ns;
  int looks_soon; /* the number of further looks at all of them */
};

/* ---- workers ---- */

static void report_failed(struct keeper *k, uint32_t id, int32_t error, uint8_t stage) {
  char body[9];
  memcpy(body, &id, 4);
  memcpy(body + 4, &error, 4);
  body[8] = (char)stage;
  report(&k->channel, 'f', body, sizeof body);
}

/* Find out whether exec succeeded, and report it. */
static void settle_exec(struct keeper *k, struct worker *w) {
  struct note note;
  ssize_t n;
  while ((n = read(w->exec_fd, &note, sizeof note)) == sizeof note && note.stage == 'p')
    w->outer_pid = note.value;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(w->exec_fd);
  w->exec_fd = -1;
  if (n == sizeof note) {
    report_failed(k, w->id, note.value, note.stage);
    w->id = ALL; /* its exit is not reported */
    return;
  }
  uint32_t body[2] = {w->id, (uint32_t)w->outer_pid};
  report(&k->channel, 'p', body, sizeof body);
  w->memory_fd = open_memory(k->proc, w->outer_pid);
}

static void stop_looking(struct worker *w) {
  if (w->memory_fd >= 0) close(w->memory_fd);
  w->memory_fd = -1;
}

/* Report that the worker is ending, if its status is known and not 0. */
static void look_at(struct keeper *k, struct worker *w) {
  struct { uint32_t id; int32_t status; } body = {w->id, 0};
  if (!has_let_go(w->memory_fd) || !is_ending(k->proc, w->outer_pid, &body.status)) return;
  stop_looking(w);
  if (body.status) report(&k->channel, 'x', &body, sizeof body);
}

static int ms_until_look(const struct keeper *k) {
  size_t workers = 0;
  for (size_t i = 0; i < k->worker_count; i++) workers += !k->workers[i].parked;
  if (workers < 2) return -1; /* no other worker profits from an early report */
  int64_t left_ns = k->next_look_ns - now_ns();
  return left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0;
}

static void look_soon(struct keeper *k) {
  k->looks_soon = SOON_LOOKS;
  k->next_look_ns = 0;
}

static void look_for_endings(struct keeper *k) {
  if (ms_until_look(k) != 0) return;
  bool soon = k->looks_soon > 0 && k->looks_soon--;
  k->next_look_ns = now_ns() + (soon ? SOON_MS : LOOK_MS) * 1000000ll;
  for (size_t n = 0; (soon || n < LOOKED_AT) && n < k->worker_count; n++) {
    struct worker *w = &k->workers[k->looked_at++ % k->worker_count];
    if (w->memory_fd >= 0 && !w->parked) look_at(k, w);
  }
}

static void report_exit(struct keeper *k, struct worker *w, int status, const struct rusage *use) {
  if (w->exec_fd >= 0) settle_exec(k, w); /* closes exec_fd, as its only writer is dead */
  if (w->id == ALL) return;
  char body[16];
  int32_t status32 = status;
  uint64_t peak = (uint64_t)use->ru_maxrss;
  memcpy(body, &w->id, 4);
  memcpy(body + 4, &status32, 4);
  memcpy(body + 8, &peak, 8);
  report(&k->channel, 'e', body, sizeof body);
}

/* Reap all children that have ended. Returns false if no child is left. */
static bool reap(struct keeper *k) {
  for (;;) {
    int status;
    struct rusage use;
    pid_t pid = wait4(-1, &status, WNOHANG, &use);
    if (pid == 0) return true;
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return false;
    for (size_t i = 0; i < k->worker_count; i++) {
      if (k->workers[i].pid != pid) continue;
      report_exit(k, &k->workers[i], status, &use);
      stop_looking(&k->workers[i]);
      k->workers[i] = k->workers[--k->worker_count];
      break;
    }
  }
}

static bool add_worker(struct keeper *k, struct worker worker) {
  if (k->worker_count == k->worker_capacity) {
    size_t capacity = k->worker_capacity * 2 + 8;
    struct worker *workers = realloc(k->workers, capacity * sizeof *workers);
    if (workers) k->workers = workers;
    struct pollfd *polled = realloc(k->polled, (capacity + WATCHED) * sizeof *polled);
    if (polled) k->polled = polled;
    if (!workers || !polled) return false;
    k->worker_capacity = capacity;
  }
  k->workers[k->worker_count++] = worker;
  return true;
}

static void launch(struct keeper *k, uint32_t id, const struct start *start, bool parked) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
    report_failed(k, id, errno, 'h');
    return;
  }
  pid_t pid = fork();
  if (pid == 0) become_worker(&k->facts, start, ends[1]);
  int error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    report_failed(k, id, error, 'k');
  } else if (!add_worker(k, (struct worker){id, pid, pid, ends[0], parked, -1})) {
    k->channel.lost = true; /* out of memory: end everything, the new process too */
  }
}

/* ---- processes that wait to become workers ---- */

static bool is_known(const struct keeper *k, pid_t pid) {
  for (size_t i = 0; i < k->worker_count; i++)
    if (k->workers[i].pid == pid) return true;
  return false;
}

static bool any_parked(const struct keeper *k) {
  for (size_t i = 0; i < k->worker_count; i++)
    if (k->workers[i].parked) return true;
  return false;
}

/* Return the errno why this process cannot be owned, or 0. */
static int refuse_own(const struct keeper *k, pid_t pid) {
  siginfo_t info;
  if (pid <= 1 || is_known(k, pid)) return EINVAL;
  return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? errno : 0;
}

static bool handle_own(struct keeper *k, const char *body) {
  uint32_t id;
  int32_t pids[2];
  memcpy(&id, body, sizeof id);
  memcpy(pids, body + sizeof id, sizeof pids);
  if (id == ALL) return false;
  int error = refuse_own(k, pids[0]);
  int memory = error ? -1 : open_memory(k->proc, pids[1]);
  if (!error && !add_worker(k, (struct worker){id, pids[0], pids[1], -1, true, memory})) return false;
  uint32_t owned[2] = {id, (uint32_t)pids[1]};
  if (error) report_failed(k, id, error, 'o');
  else report(&k->channel, 'p', owned, sizeof owned);
  return true;
}

static void take(struct keeper *k, uint32_t id) {
  for (size_t i = 0; i < k->worker_count; i++)
    if (k->workers[i].id == id || id == ALL) k->workers[i].parked = false;
}

/* ---- killing ---- */

/* List up to MAX_CHILDREN pids of children that are not parked, as the keeper sees them or, if
 * `outside`, as the agent does. Returns their number. */
static size_t list_unparked(const struct keeper *k, bool outside, pid_t *pids) {
  size_t kept = 0;
  size_t n = outside ? list_children(k->proc, k->self, pids)
                     : list_children(k->own_proc, getpid(), pids);
  for (size_t i = 0; i < n; i++) {
    bool spared = false;
    for (size_t j = 0; j < k->worker_count; j++) {
      const struct worker *w = &k->workers[j];
      spared |= w->parked && pids[i] == (outside ? w->outer_pid : w->pid);
    }
    if (!spared) pids[kept++] = pids[i];
  }
  return kept;
}

/* Kill in one pass. Children of a killed process become children of the keeper, so that repeating
 * this until no child is left reaches every descendant. */
static void kill_children(const struct keeper *k) {
  pid_t pids[MAX_CHILDREN];
  bool all = k->inside && !any_parked(k);
  if (all) kill(-1, SIGKILL); /* every process in the namespace but this one */
  if (all) return;
  for (size_t i = 0; i < k->worker_count; i++)
    if (!k->workers[i].parked) kill(-k->workers[i].pid, SIGKILL);
  size_t n = list_unparked(k, false, pids);
  for (size_t i = 0; i < n; i++) kill(pids[i], SIGKILL);
}

/* Report the children that are not parked, or that there are none. */
static void report_children(struct keeper *k, char kind, uint32_t tag, bool any) {
  struct { uint32_t tag, n; int32_t pids[MAX_CHILDREN]; } body;
  body.tag = tag;
  body.n = any ? (uint32_t)list_unparked(k, true, body.pids) : 0;
  report(&k->channel, kind, &body, (2 + (size_t)body.n) * 4);
}

static void start_sweep(struct keeper *k, bool silent, uint32_t tag, uint32_t bound_ms) {
  int64_t deadline_ns = now_ns() + bound_ms * 1000000ll;
  k->sweep = (struct sweep){true, silent, tag, deadline_ns};
  kill_children(k);
}

static void continue_sweep(struct keeper *k, bool any_child) {
  pid_t pids[MAX_CHILDREN];
  bool late = now_ns() >= k->sweep.deadline_ns;
  bool any_left = any_child && (!any_parked(k) || list_unparked(k, true, pids));
  if (any_left) kill_children(k);
  if (any_left && !late) return;
  k->sweep.active = false;
  if (!k->sweep.silent) report_children(k, 'w', k->sweep.tag, any_left);
}

static void signal_workers(struct keeper *k, uint32_t id, int signo, bool group) {
  for (size_t i = 0; i < k->worker_count; i++) {
    struct worker *w = &k->workers[i];
    if (w->id == ALL || (id == ALL ? w->parked : w->id != id)) continue;
    if (!group || kill(-w->pid, signo) < 0) kill(w->pid, signo); /* it has no group yet when it has just been forked */
  }
}

/* ---- requests ---- */

static void launch_whole(struct keeper *k, const struct spawn_head *head,
                         const struct passed *passed, char *rest, bool parked) {
  char *cwd = rest + head->cpus_size;
  char **argv = split_strings(cwd + strlen(cwd) + 1, head->argc, head->envc);
  char **envp = argv ? argv + head->argc + 1 : 0;
  struct start start = {passed, rest, head->cpus_size, cwd, argv, envp, head->shares_session != 0};
  if (argv) launch(k, head->id, &start, parked);
  else report_failed(k, head->id, ENOMEM, 'k');
  free(argv);
}

/* Start the process, or report why not. Returns false if the request does not even have an id. */
static bool handle_spawn(struct keeper *k, char *body, size_t size, bool parked) {
  static const struct passed none;
  struct spawn_head head;
  if (size < sizeof head) return false;
  memcpy(&head, body, sizeof head);
  if (head.id == ALL) return false;
  bool came = head.fds && k->channel.passed_count;
  const struct passed *passed = came ? k->channel.passed : &none;
  body += sizeof head;
  if ((head.fds && !came) || !is_whole(&head, body, size - sizeof head))
    report_failed(k, head.id, EBADMSG, 'r');
  else if (passed->count == head.fds) launch_whole(k, &head, passed, body, parked);
  else report_failed(k, head.id, EMFILE, 'h'); /* there was no room for some */
  if (came) drop_passed(&k->channel);
  return true;
}

static bool handle_arm(struct keeper *k, const char *body) {
  uint64_t deadline_ns;
  uint32_t clock;
  memcpy(&deadline_ns, body, sizeof deadline_ns);
  memcpy(&clock, body + sizeof deadline_ns, sizeof clock);
  if (deadline_ns > INT64_MAX || clock > 1) return false;
  arm(&k->dead_man, (int64_t)deadline_ns, clock);
  return true;
}

/* Carry out a request. Returns false if it is invalid. */
static bool handle_frame(struct keeper *k, char *frame, size_t size) {
  uint32_t words[2];
  char *body = frame + 1;
  size_t length = size - 1;
  if (*frame == 'S' || *frame == 'P') return handle_spawn(k, body, length, *frame == 'P');
  if (*frame == 'O' && length == 12) return handle_own(k, body);
  if (*frame == 'A' && length == 12) return handle_arm(k, body);
  if (length != sizeof words) return false;
  memcpy(words, body, sizeof words);
  if (*frame == 'K') signal_workers(k, words[0], (int)words[1], true);
  else if (*frame == 'N') signal_workers(k, words[0], (int)words[1], false);
  else if (*frame == 'W') start_sweep(k, false, words[0], words[1]);
  else if (*frame == 'T') take(k, words[0]);
  else if (*frame == 'L') report_children(k, 'l', words[0], reap(k));
  else return false;
  return true;
}

static void receive(struct keeper *k) {
  char *frame;
  size_t size;
  while (read_channel(&k->channel))
    while ((frame = next_frame(&k->channel, &size)))
      if (!handle_frame(k, frame, size)) k->channel.lost = true;
}

/* ---- the loop ---- */

static void check_dead_man(struct keeper *k) {
  if (!has_fired(&k->dead_man)) return;
  report(&k->channel, 'd', "", 0);
  take(k, ALL); /* no process is spared */
  if (!k->sweep.active) start_sweep(k, true, 0, LAST_SWEEP_MS);
}

static void drain_signals(const struct keeper *k) {
  struct signalfd_siginfo info[8];
  while (read(k->signal_fd, info, sizeof info) > 0) continue;
}

static struct pollfd readable(int fd) {
  return (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Wait for events. Returns false if only a look for endings or the next pass of a sweep is due. */
static bool wait_for_something(struct keeper *k, size_t workers) {
  struct pollfd *p = k->polled;
  p[SOCKET] = readable(k->channel.socket);
  if (k->channel.out.begin < k->channel.out.end) p[SOCKET].events |= POLLOUT;
  p[AGENT] = readable(k->agent_fd);
  p[CHILDREN] = readable(k->signal_fd);
  p[TIMER] = readable(k->dead_man.timers[0]);
  p[BOOT_TIMER] = readable(k->dead_man.timers[1]);
  for (size_t i = 0; i < workers; i++) p[WATCHED + i] = readable(k->workers[i].exec_fd);
  int ms = ms_until_look(k);
  if (k->sweep.active && (ms < 0 || ms > KILL_INTERVAL_MS)) ms = KILL_INTERVAL_MS;
  int ready = poll(p, WATCHED + workers, ms);
  if (ready < 0)
    for (size_t i = 0; i < WATCHED + workers; i++) p[i].revents = 0;
  return ready != 0;
}

static void handle_all(struct keeper *k, size_t workers) {
  bool timer = k->polled[TIMER].revents || k->polled[BOOT_TIMER].revents;
  bool asked = k->polled[SOCKET].revents & ~POLLOUT;
  if (k->polled[AGENT].revents) k->channel.lost = true;
  for (size_t i = 0; i < workers; i++)
    if (k->polled[WATCHED + i].revents) settle_exec(k, &k->workers[i]);
  if (asked || timer) receive(k); /* before the timer, which may have been armed again */
  if (timer) check_dead_man(k);
  if (k->polled[CHILDREN].revents) look_soon(k);
  drain_signals(k);
  bool any_left = reap(k);
  if (k->sweep.active) continue_sweep(k, any_left);
}

static void serve(struct keeper *k) {
  while (!k->channel.lost) {
    size_t workers = k->worker_count;
    if (wait_for_something(k, workers) || k->sweep.active) handle_all(k, workers);
    look_for_endings(k);
    flush_reports(&k->channel);
  }
}

static void kill_everything(struct keeper *k) {
  struct pollfd child = readable(k->signal_fd);
  take(k, ALL);
  int64_t deadline_ns = now_ns() + LAST_SWEEP_MS * 1000000ll;
  do {
    kill_children(k);
    if (!reap(k)) return;
    poll(&child, 1, KILL_INTERVAL_MS);
    drain_signals(k);
  } while (now_ns() < deadline_ns);
}

/* Open /proc. Returns -1 if there is none, or if it belongs to another PID namespace. */
static int open_proc(void) {
  int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (proc < 0 || pid_in(proc) == getpid()) return proc;
  close(proc);
  return -1;
}

/* Do what has to be done in the agent's own namespace. */
static bool connect_agent(struct keeper *k, char **argv) {
  pid_t agent = (pid_t)atoi(argv[2]);
  k->channel.socket = atoi(argv[1]);
  k->agent_fd = -1;
#ifdef SYS_pidfd_open
  k->agent_fd = (int)syscall(SYS_pidfd_open, agent, 0); /* close-on-exec by definition */
#endif
  k->channel.lost = getppid() != agent;
  k->proc = open_proc();
  return fcntl(k->channel.socket, F_SETFD, FD_CLOEXEC) == 0;
}

/* Enter the namespace. Returns whether this process is inside, and reports it to the agent. */
static bool move_inside(struct keeper *k) {
  struct { int32_t pid, error; char stage; } body = {0, 0, 0};
  body.stage = (char)enter_namespace(k->proc);
  if (body.stage) body.error = errno;
  if (getpid() == 1) body.pid = pid_in(k->proc);
  report(&k->channel, 'n', &body, 9);
  flush_reports(&k->channel);
  return !body.stage;
}

static bool prepare(struct keeper *k) {
  sigset_t all, child;
  signal(SIGCHLD, SIG_DFL);
  setsid(); /* fails if the agent has made the session already */
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigfillset(&all); /* blocked, not ignored: a new worker must not lose early signals */
  sigprocmask(SIG_SETMASK, &all, NULL);
  raise_descriptor_limit(&k->facts.files);
  k->facts.parent = getpid();
  k->own_proc = k->inside ? open_proc() : k->proc;
  k->facts.outer_proc = k->inside ? k->proc : -1;
  k->self = k->inside ? pid_in(k->proc) : getpid();
  k->signal_fd = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
  k->polled = calloc(WATCHED, sizeof *k->polled);
  prctl(PR_SET_PDEATHSIG, SIGCONT); /* a stopped keeper would not see that the agent has ended */
  return k->signal_fd >= 0 && k->polled && make_dead_man(&k->dead_man) &&
         prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

int main(int argc, char **argv) {
  struct keeper k;
  memset(&k, 0, sizeof k);
  if (argc < 3 || !connect_agent(&k, argv)) return 2;
  k.inside = argc > 3;
  if (k.inside && !move_inside(&k)) return 2;
  if (!prepare(&k)) return 2;
  serve(&k);
  kill_everything(&k);
  remove_scratch();
  return 0;
}
