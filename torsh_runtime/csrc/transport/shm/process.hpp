// Another process of this machine, and whether it still runs its program.
#pragma once

#include <atomic>
#include <memory>

#include "transport/descriptor.hpp"

namespace torsh::shm {

// One for each process that is watched, in however many groups. Any thread.
class Process {
 public:
  // The one that has this number now; null if none has. Throws std::system_error.
  static std::shared_ptr<Process> find(int pid);

  int pid() const { return pid_; }
  // Readable once the process has ended.
  int descriptor() const { return descriptor_.number(); }
  // Whether it has ended, or was seen to be ending.
  bool has_ended() const;
  // Whether it was seen to be ending; looks at nothing.
  bool was_ending() const { return ending_.load(std::memory_order_acquire); }
  // Whether it runs no more of its program, though it may not have ended: that takes until its memory is freed,
  // which for some gigabytes is the better part of a second. Looks at all its threads.
  bool is_ending();

 private:
  Process(int pid, Descriptor descriptor) : pid_(pid), descriptor_(std::move(descriptor)) {}
  static std::shared_ptr<Process> open(int pid);

  const int pid_;
  const Descriptor descriptor_;
  std::atomic<bool> ending_{false};
};

}  // namespace torsh::shm
