// A process that is there and does nothing.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include <linux/sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torsh::test {

// A process with this very number, which waits to be killed; -1 if this one may not choose numbers.
inline pid_t fork_as(pid_t number) {
  clone_args wanted{};
  wanted.exit_signal = SIGCHLD;
  wanted.set_tid = reinterpret_cast<std::uint64_t>(&number);
  wanted.set_tid_size = 1;
  const auto made = static_cast<pid_t>(syscall(SYS_clone3, &wanted, sizeof wanted));
  while (made == 0) pause();
  return made;
}

// Until it is ended, which any thread may do.
class Process {
 public:
  Process() : pid_(fork()) {
    while (pid_ == 0) pause();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  }
  ~Process() { end(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const { return pid_; }
  void end() {
    if (ended_.exchange(true)) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const int pid_;
  std::atomic<bool> ended_{false};
};

}  // namespace torsh::test
