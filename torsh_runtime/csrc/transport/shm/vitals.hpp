// A thread of this process that gives a sign of its life in each of its groups, and watches the signs of the
// groups' other processes: a killed one is missed within a millisecond, though it takes long to end.
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
#include "transport/shm/life_sign.hpp"
#include "transport/shm/process.hpp"

namespace torsh::shm {

// Where another process gives its sign.
struct Watched {
  std::shared_ptr<Process> process;
  LifeSign* sign;
};

// One for each process that has groups with others, as long as it has.
class Vitals {
 public:
  class Membership;

  ~Vitals();
  Vitals(const Vitals&) = delete;
  Vitals& operator=(const Vitals&) = delete;

 private:
  // Of one other process: where it gives signs, of which one is waited on, as they all end together.
  struct Watch {
    std::shared_ptr<Process> process;
    std::vector<LifeSign*> signs;
    std::uint32_t seen = 0;   // of the first
    bool is_over = false;
    bool is_settled = false;  // it is known to end, or to go on without its sign
    int looks = 0;            // since its sign is over
    double again = 0;         // when it is looked at next, as of now()
  };
  struct Snapshot {
    std::vector<Seen> words;      // that are waited for, the first of them `changes_`
    std::optional<double> until;  // the next look, if there is anything to look at
  };

  Vitals();
  static std::shared_ptr<Vitals> ours();
  void join(Membership& member);
  void leave(Membership& member);
  void interrupt();
  void watch();
  void look();
  bool examine(Watch& watch);
  void tell();
  Snapshot snapshot();
  void wait(const Snapshot& seen);

  const unsigned forks_;
  std::mutex mutex_;  // of all that follows
  RobustList list_;
  bool is_over_ = false;
  std::vector<Membership*> members_;
  std::map<int, Watch> watches_;  // by pid
  int tellings_ = 0;              // to come
  std::atomic<std::uint32_t> changes_{0};  // of what is to be waited for; a futex
  bool waits_for_many_ = true;             // the kernel can; the thread's own
  std::thread thread_;
};

// Of a group, as long as this lives. The signs must be there, and be one's own to write and those of
// the processes to read.
class Vitals::Membership {
 public:
  // `news` is called by any thread when a process of any group is known to be ending, perhaps several times; it
  // must not block. Gives and sees no signs where no thread is to be had.
  Membership(LifeSign& own, std::vector<Watched> others, std::function<void()> news);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

 private:
  friend class Vitals;
  LifeSign& own_;
  const std::vector<Watched> others_;
  const std::function<void()> news_;
  std::shared_ptr<Vitals> vitals_;
};

}  // namespace torsh::shm
