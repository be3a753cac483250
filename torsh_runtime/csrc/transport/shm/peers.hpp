// Tells whether the processes of other ranks still live.
#pragma once

#include <poll.h>

#include <memory>
#include <vector>

#include "transport/descriptor.hpp"

namespace torsh::shm {

class Peers {
 public:
  // pids[r] is rank r's process; one's own, and values <= 0, are never reported as dead.
  // A process has one descriptor for each other that it watches, in however many groups.
  explicit Peers(const std::vector<int>& pids);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // The ranks whose process has ended. Any thread.
  std::vector<int> find_dead() const;
  // Whether this rank's has. Any thread.
  bool has_ended(int rank) const;
  // Whether a rank's process runs no more of its program, though it may not have ended: that takes until
  // its memory is freed, which for some gigabytes is the better part of a second. Any thread.
  bool is_ending(int rank) const;
  // Whether a rank's process is stopped, by SIGSTOP or a debugger. Any thread.
  bool is_stopped(int rank) const;

 private:
  const std::vector<int> pids_;
  std::vector<std::shared_ptr<const Descriptor>> watched_;
  std::vector<pollfd> descriptors_;  // their pidfds, one for each watched rank
  std::vector<int> ranks_;
  std::vector<int> dead_from_start_;
};

}  // namespace torsh::shm
