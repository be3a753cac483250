// A process that is there and does nothing.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/wait.h>
#include <unistd.h>

namespace torsh::test {

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
