#include "endings.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // of functions that the keeper needs besides
#include "../../torshrun/keeper/endings.h"
#pragma GCC diagnostic pop

#include "common/clock.hpp"
#include "process.hpp"
#include "transport/descriptor.hpp"
#include "transport/shm/process.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

constexpr int looks = 20000;

// Each thread starts the next one, and ends.
void* hop(void*) {
  pthread_t next;
  while (pthread_create(&next, nullptr, hop, nullptr) != 0) {
  }
  pthread_detach(next);
  return nullptr;
}

// One that goes on without its first thread, in threads that each live for a moment, never ends.
void a_process_that_goes_from_thread_to_thread() {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    hop(nullptr);
    syscall(SYS_exit, 0);
  }
  const Descriptor proc(open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)), memory(open_memory(proc.number(), pid));
  const auto watched = shm::Process::find(pid);
  const double until = now() + patience;
  while (!has_let_go(memory.number()) && now() < until) {
  }
  bool has_begun = has_let_go(memory.number()), told_by_keeper = false, told = false;
  for (int i = 0; i < looks; ++i) {
    std::int32_t status = 0;
    told_by_keeper |= is_ending(proc.number(), pid, &status);
    told |= watched->is_ending();
  }
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  if (!has_begun) throw Wrong("the first thread does not end");
  if (told_by_keeper || told) throw Wrong("a process that goes on is taken for dead");
}

// In a PID namespace that has no /proc of its own: whether a process there is taken for the one that has its number
// outside. 0 as well if this one may not make a namespace or choose numbers.
int is_taken_for(pid_t number) {
  if (unshare(CLONE_NEWPID) != 0) return 0;
  const pid_t first = fork();
  if (first == 0) {
    const bool is_there = fork_as(number) == number;
    _exit(is_there && shm::Process::find(number)->is_ending());
  }
  int status = 0;
  waitpid(first, &status, 0);
  return status;
}

void a_number_that_is_somebody_elses_in_proc() {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const pid_t dead = fork();
    if (dead == 0) _exit(0);
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(dead), &ended, WEXITED | WNOWAIT);
    _exit(is_taken_for(dead) != 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) throw Wrong("a process is taken for another that has its number elsewhere");
}

}  // namespace

std::vector<Scene> endings_scenes() {
  return {
      {"a process that goes from thread to thread", a_process_that_goes_from_thread_to_thread},
      {"a number that is somebody else's in /proc", a_number_that_is_somebody_elses_in_proc},
  };
}

}  // namespace torsh::test
