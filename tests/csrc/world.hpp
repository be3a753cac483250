// Groups whose ranks are threads of this process, over the real transports.
#pragma once

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "group/group.hpp"
#include "process.hpp"

namespace torsh::test {

constexpr double patience = 60;  // seconds that an operation may take which is to succeed

// A test has found something wrong.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool is_so, const char* what) {
  if (!is_so) throw Wrong(what);
}

// What a group is like.
struct Shape {
  std::vector<int> nodes{2};  // how many ranks each has
  bool scattered = false;     // neighbouring ranks are on different nodes
  bool tcp = false;           // nodes are linked by TCP on loopback, else by Unix sockets
  int streams = 1;            // for data, between two ranks of different nodes
  bool cross_memory = true;          // ranks of a node can copy from each other's memory
  int processors = 0;         // that the ranks take the machine to have; 0 is what it has
  double quota = 0;           // of processors, that they take the system to let them use together
  int near = 0;               // so many ranks in a row have a cache in common; 0 is what the machine has
  bool regions = false;       // buffers lie in memory that all ranks of the node have mapped
  across::Strategy strategy{};
  shm::Tuning tuning{4 << 10, 4 << 10, 64 << 10};
  across::Limits limits{1 << 10, 8 << 10, 4 << 10, 16 << 10};

  int ranks() const;
  std::vector<std::vector<int>> layout() const;
  std::string words() const;
};

// What a failure says, for people.
std::string describe(const Failure& failure);

// Both ends of a connection on loopback.
std::pair<Descriptor, Descriptor> tcp_pair();

// One rank, on the thread that is given it.
struct Member {
  int rank, ranks;
  Group& group;
  std::span<std::byte> mapped;   // this rank's part of the memory that all of its node have mapped
  std::atomic<bool>& interrupt;  // whether its waits are to end with Interrupted
  const Recording& recording;    // of its operations
};

class World {
 public:
  explicit World(Shape shape);
  ~World();

  // A process of its own stands for the rank: whoever watches the rank watches that. The rank's
  // memory cannot be reached then. Before run(), which ends the process.
  void give_process(int rank);
  int process(int rank) const;
  // Kills it, without a word from the rank to its group, whose connections end.
  void kill(int rank);

  // Makes the group, lets its ranks meet, calls body(member) on a thread for each, and closes the
  // group. Throws what one of them threw, rather what it found wrong than what came of that; and if they have noted
  // what is not true.
  void run(const std::function<void(Member&)>& body);

 private:
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };

  GroupSetup setup(int rank);
  void be(int rank, const std::function<void(Member&)>& body, std::barrier<>& met);
  void link(int lower, int higher);
  std::span<std::byte> share_memory(Group& group);

  const Shape shape_;
  const std::vector<std::vector<int>> layout_;
  std::vector<Descriptor> segments_;                          // by node
  std::vector<std::unique_ptr<Page[]>> mapped_;               // by node, if there are regions
  std::vector<std::vector<std::vector<Descriptor>>> links_;  // by rank, by peer
  std::vector<std::unique_ptr<Process>> processes_;          // by rank; null is this process
  std::vector<Descriptor> connections_;                      // of the rank that has a process
  std::vector<std::unique_ptr<Recording>> recordings_;       // by rank
};

}  // namespace torsh::test
