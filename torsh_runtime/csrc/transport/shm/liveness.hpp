// A thread that owns a robust futex in each group of this process, and watches those of the groups' other processes.
// So the end of a killed process is noticed within a millisecond, though it takes long to end.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transport/shm/futex.hpp"
#include "transport/shm/robust_futex.hpp"
#include "transport/shm/process.hpp"

namespace torsh::shm {

// Another process and its robust futex.
struct Watched {
  std::shared_ptr<Process> process;
  RobustFutex* futex;
};

// One per process, while it has groups with others.
class LivenessMonitor {
 public:
  class Subscription;

  ~LivenessMonitor();
  LivenessMonitor(const LivenessMonitor&) = delete;
  LivenessMonitor& operator=(const LivenessMonitor&) = delete;

 private:
  // One other process and its futexes. Only one futex is waited on, since all are marked together.
  struct Watch {
    std::shared_ptr<Process> process;
    std::vector<RobustFutex*> futexes;
    std::uint32_t seen = 0;  // the first futex's value
    bool is_over = false;
    bool is_settled = false;  // it is known to be ending, or to run without its futex
    int looks = 0;  // since its futex was marked
    double again = 0;  // next look, as of now()
  };
  struct Snapshot {
    std::vector<Seen> words;  // words to wait on, the first of them `changes_`
    std::optional<double> until;  // time of the next look, if any
  };

  LivenessMonitor();
  static std::shared_ptr<LivenessMonitor> ours();
  void join(Subscription& member);
  void leave(Subscription& member);
  void interrupt();
  void watch();
  void look();
  bool examine(Watch& watch);
  void raise_alarms();
  Snapshot snapshot();
  void wait(const Snapshot& seen);

  const unsigned forks_;
  std::mutex mutex_;  // of all that follows
  RobustList list_;
  bool is_over_ = false;
  std::vector<Subscription*> members_;
  std::map<int, Watch> watches_;  // by pid
  int alarms_left_ = 0;  // alarms still to raise
  std::atomic<std::uint32_t> changes_{0};  // changes of what to wait on; a futex
  bool waits_for_many_ = true;  // whether the kernel can wait on many words; used by the thread only
  std::thread thread_;
};

// A group's part in it, for the lifetime of this object. The futexes must exist; the process writes its own and reads
// those of the others.
class LivenessMonitor::Subscription {
 public:
  // `news` is called when a process of any group is known to be ending, perhaps several times, on any thread. It must
  // not block. Without a thread there is neither futex nor watching.
  Subscription(RobustFutex& own, std::vector<Watched> others, std::function<void()> news);
  ~Subscription();
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

 private:
  friend class LivenessMonitor;
  RobustFutex& own_;
  const std::vector<Watched> others_;
  const std::function<void()> news_;
  std::shared_ptr<LivenessMonitor> monitor_;
};

}  // namespace torsh::shm
