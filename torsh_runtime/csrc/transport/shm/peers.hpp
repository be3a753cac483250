// Tells whether the processes of other ranks still live.
#pragma once

#include <poll.h>

#include <memory>
#include <vector>

#include "transport/shm/process.hpp"

namespace torsh::shm {

// A process counts as ended once it was seen to be ending: see Process.
class Peers {
 public:
  // pids[r] is rank r's process; one's own, and values <= 0, are never reported as dead.
  explicit Peers(const std::vector<int>& pids);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // The ranks whose process has ended. Any thread.
  std::vector<int> find_dead() const;
  // Whether this rank's process has ended. Any thread.
  bool has_ended(int rank) const;
  // Examines whether a rank's process is ending. Any thread.
  bool is_ending(int rank) const;
  // Whether a rank's process is stopped, by SIGSTOP or a debugger. Any thread.
  bool is_stopped(int rank) const;
  // A rank's process; null of those that are never reported, or were dead from the start.
  std::shared_ptr<Process> process(int rank) const;

 private:
  const std::vector<int> pids_;
  std::vector<std::shared_ptr<Process>> watched_;
  std::vector<pollfd> descriptors_;  // their pidfds, one for each watched rank
  std::vector<int> ranks_;
  std::vector<int> dead_from_start_;
};

}  // namespace torsh::shm
