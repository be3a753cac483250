// Another process of this machine, and whether it still runs its program.
#pragma once

#include <atomic>
#include <memory>

#include "transport/descriptor.hpp"

namespace torsh::shm {

// One per watched process, in however many groups. Any thread.
class Process {
 public:
  // The process that has this PID now, or null. Throws std::system_error.
  static std::shared_ptr<Process> find(int pid);

  int pid() const { return pid_; }
  // Readable once the process has ended.
  int descriptor() const { return descriptor_.number(); }
  // Whether it has ended, or was seen to be ending.
  bool has_ended() const;
  // Whether it was seen to be ending; examines nothing.
  bool was_ending() const { return ending_.load(std::memory_order_acquire); }
  // Whether none of its threads runs the program any more. It may not have ended yet: freeing some gigabytes of
  // memory takes most of a second. Examines all its threads.
  bool is_ending();

 private:
  Process(int pid, Descriptor descriptor) : pid_(pid), descriptor_(std::move(descriptor)) {}
  static std::shared_ptr<Process> open(int pid);

  const int pid_;
  const Descriptor descriptor_;
  std::atomic<bool> ending_{false};
};

}  // namespace torsh::shm
