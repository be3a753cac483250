#include "robust_futexes.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "process.hpp"
#include "transport/descriptor.hpp"
#include "transport/shm/liveness.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

using shm::RobustFutex;
using Membership = shm::LivenessMonitor::Subscription;

constexpr int mappings = 400;  // of the same memory: to free the page tables takes long, and they need little
constexpr std::size_t mapped = 16 << 20;
constexpr int attempts = 10;
constexpr int many = 140;  // processes: more than the kernel waits for at once

template <typename Condition>
bool comes(Condition condition) {
  const double until = now() + patience;
  while (!condition() && now() < until) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return condition();
}

// Emulators have none.
bool has_robust_lists() {
  void* head = nullptr;
  std::size_t bytes = 0;
  return syscall(SYS_get_robust_list, 0, &head, &bytes) == 0;
}

// What all processes of a scene see.
struct Board {
  RobustFutex signs[many + 1];
  std::atomic<int> ready, news;
};

class SharedBoard {
 public:
  SharedBoard() : base_(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  ~SharedBoard() { munmap(base_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;

  Board* operator->() const { return static_cast<Board*>(base_); }

 private:
  void* base_;
};

// A process that runs the body, and is killed with this if that does not end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(0);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pid() const { return pid_; }
  void kill() const { ::kill(pid_, SIGKILL); }
  // Its status, once it has ended.
  int wait() {
    int status = 0;
    if (!std::exchange(waited_, true)) waitpid(pid_, &status, 0);
    return status;
  }
  void end() {
    if (!waited_) kill();
    wait();
  }

 private:
  const int pid_;
  bool waited_ = false;
};

// Gives a sign of life, and does nothing more.
[[noreturn]] void live(const SharedBoard& board, int number) {
  const Membership member(board->signs[number], {}, [] {});
  ++board->ready;
  while (true) pause();
}

std::shared_ptr<shm::Process> process(const Child& child) {
  auto found = shm::Process::find(child.pid());
  expect(found != nullptr, "there is no such process");
  return found;
}

bool has_ended(const shm::Process& process) {
  pollfd entry{process.descriptor(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// The news comes while the process is being taken apart.
void a_death_is_told_before_it_is_over() {
  bool early = false;
  for (int attempt = 0; attempt < attempts && !early; ++attempt) {
    const SharedBoard board;
    Child victim([&] {
      const Descriptor file(memfd_create("much", MFD_CLOEXEC));
      if (ftruncate(file.number(), mapped) != 0) _exit(1);
      for (int i = 0; i < mappings; ++i) {
        syscall(SYS_mmap, nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.number(), 0);
      }
      live(board, 1);
    });
    expect(comes([&] { return board->ready == 1; }), "the victim does not come to life");
    const auto watched = process(victim);
    std::atomic<int> told{0}, first{0};
    const auto note = [&] {
      if (told++ == 0) first = has_ended(*watched) ? 1 : 2;
    };
    const Membership member(board->signs[0], {{watched, &board->signs[1]}}, note);
    victim.kill();
    expect(comes([&] { return first != 0; }), "nobody tells of the death");
    expect(watched->was_ending(), "the process does not count as ending");
    early = first == 2;
  }
  expect(early, "the death is told when it is over");
}

// A process that runs another program now has ended the thread that gave its sign, and goes on.
void another_program_is_no_death() {
  const SharedBoard board;
  Child other([&] {
    const Membership member(board->signs[1], {}, [] {});
    ++board->ready;
    execl("/bin/sleep", "sleep", "1000", nullptr);
  });
  const auto watched = process(other);
  std::atomic<int> told{0};
  const Membership member(board->signs[0], {{watched, &board->signs[1]}}, [&] { ++told; });
  expect(comes([&] { return board->ready == 1 && RobustFutex::owner_died(board->signs[1].word); }), "the sign does not end");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is looked at several times
  expect(told == 0 && !watched->has_ended(), "a process that goes on is taken for dead");
}

// What a process forks off gives no sign, nor does its end; and it keeps nobody from seeing its parent's.
void forks_of_a_process() {
  const SharedBoard board;
  Child victim([&] {
    const Membership member(board->signs[1], {}, [] {});
    if (fork() == 0) _exit(0);
    wait(nullptr);
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, 0);
      while (board->news == 0) usleep(1000);
      _exit(0);
    }
    ++board->ready;
    while (true) pause();
  });
  const auto watched = process(victim);
  std::atomic<int> told{0};
  const Membership member(board->signs[0], {{watched, &board->signs[1]}}, [&] { ++told; });
  expect(comes([&] { return board->ready == 1; }), "the victim does not come to life");
  expect(told == 0 && !RobustFutex::owner_died(board->signs[1].word), "the end of a fork is taken for its parent's");
  victim.kill();
  const bool came = comes([&] { return told > 0; });
  board->news = 1;  // lets the fork end
  expect(came, "a fork that lives hides the death");
}

// A sign is given in each group, and waited for in one as long as that is there.
void groups_that_end() {
  const SharedBoard board;
  Child victim([&] {
    const Membership first(board->signs[2], {}, [] {});
    live(board, 3);
  });
  expect(comes([&] { return board->ready == 1; }), "the victim does not come to life");
  const auto watched = process(victim);
  std::atomic<int> told{0}, of_first{0};
  std::optional<Membership> first;
  first.emplace(board->signs[0], std::vector<shm::Watched>{{watched, &board->signs[2]}}, [&] { ++of_first; });
  const Membership second(board->signs[1], {{watched, &board->signs[3]}}, [&] { ++told; });
  first.reset();
  expect(board->signs[0].word == 0, "a group that has ended still gives a sign");
  victim.kill();
  expect(comes([&] { return told > 0; }), "nobody tells of the death");
  expect(of_first == 0, "a group that has ended is told of a death");
  expect(RobustFutex::owner_died(board->signs[2].word) && RobustFutex::owner_died(board->signs[3].word), "a group is given no sign");
}

// Somebody else may have the number of a process when its sign is looked at.
void a_death_that_is_over_is_told() {
  const SharedBoard board;
  Child victim([&] { live(board, 1); });
  expect(comes([&] { return board->ready == 1; }), "the victim does not come to life");
  const auto watched = process(victim);
  victim.end();
  expect(!watched->is_ending() && watched->has_ended(), "it is taken for the one who has its number");
  std::atomic<int> told{0};
  const Membership member(board->signs[0], {{watched, &board->signs[1]}}, [&] { ++told; });
  expect(comes([&] { return told > 0; }), "nobody tells of the death");
}

// The kernel waits for no more than 128 words at a time; all processes together see each death.
void more_processes_than_can_be_waited_for() {
  const SharedBoard board;
  std::vector<std::unique_ptr<Child>> children;
  std::vector<shm::Watched> watched;
  for (int number = 1; number <= many; ++number) {
    children.push_back(std::make_unique<Child>([&] { live(board, number); }));
    watched.push_back({process(*children.back()), &board->signs[number]});
  }
  expect(comes([&] { return board->ready == many; }), "the processes do not come to life");
  std::atomic<int> told{0};
  const Membership member(board->signs[0], watched, [&] { ++told; });
  children.front()->kill();
  expect(comes([&] { return told > 0; }), "nobody tells of the death");
}

void forbid(int call) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{sizeof program / sizeof *program, program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(2);
}

// The kernel wakes one of those who wait, and that one the others.
void all_who_watch_are_told() {
  constexpr int watchers = 4;
  const SharedBoard board;
  Child victim([&] { live(board, 1); });
  std::vector<std::unique_ptr<Child>> children;
  for (int number = 0; number < watchers; ++number) {
    children.push_back(std::make_unique<Child>([&] {
      bool is_told = false;
      const Membership member(board->signs[2 + number], {{process(victim), &board->signs[1]}}, [&] {
        if (!std::exchange(is_told, true)) ++board->news;
      });
      ++board->ready;
      while (true) pause();
    }));
  }
  expect(comes([&] { return board->ready == watchers + 1; }), "the processes do not come to life");
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // all of them wait
  victim.kill();
  expect(comes([&] { return board->news == watchers; }), "not all are told of the death");
}

// Who learns of a death tells the keeper that it descends from, which then looks at its workers.
// Once: the signal is lost if the one of the death itself has not been taken yet.
bool rouses_the_keeper() {
  constexpr const char* keeper = "torsh-keeper";
  char before[16];
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  prctl(PR_GET_NAME, before);
  prctl(PR_SET_NAME, keeper);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  const SharedBoard board;
  Child victim([&] { live(board, 1); });
  Child watcher([&] {
    const Membership member(board->signs[0], {{process(victim), &board->signs[1]}}, [] {});
    ++board->ready;
    while (true) pause();
  });
  const bool lives = comes([&] { return board->ready == 2; });
  victim.kill();
  siginfo_t told{};
  const timespec limit{2, 0};
  while (lives && told.si_pid != watcher.pid() && sigtimedwait(&child, &told, &limit) >= 0) {
  }
  sigprocmask(SIG_UNBLOCK, &child, nullptr);
  prctl(PR_SET_NAME, before);
  return told.si_pid == watcher.pid() && told.si_code == SI_USER;
}

void the_keeper_is_roused() {
  for (int attempt = 0; attempt < 5; ++attempt)
    if (rouses_the_keeper()) return;
  throw Wrong("the keeper is not roused");
}

// As on kernels before Linux 5.16.
void a_kernel_that_waits_for_one_word_only() {
  const SharedBoard board;
  Child victim([&] { live(board, 1); });
  expect(comes([&] { return board->ready == 1; }), "the victim does not come to life");
  Child watcher([&] {
    forbid(SYS_futex_waitv);
    const Membership member(board->signs[0], {{process(victim), &board->signs[1]}}, [&] { ++board->news; });
    ++board->ready;
    while (true) pause();
  });
  expect(comes([&] { return board->ready == 2; }), "the watcher does not come to life");
  victim.kill();
  expect(comes([&] { return board->news > 0; }), "nobody tells of the death");
}

}  // namespace

std::vector<Scene> robust_futex_scenes() {
  if (!has_robust_lists()) return {};
  return {
      {"a death is told before it is over", a_death_is_told_before_it_is_over},
      {"another program is no death", another_program_is_no_death},
      {"forks of a process", forks_of_a_process},
      {"groups that end", groups_that_end},
      {"a death that is over is told", a_death_that_is_over_is_told},
      {"more processes than can be waited for", more_processes_than_can_be_waited_for},
      {"all who watch are told", all_who_watch_are_told},
      {"the keeper is roused", the_keeper_is_roused},
      {"a kernel that waits for one word only", a_kernel_that_waits_for_one_word_only},
  };
}

}  // namespace torsh::test
