#include "pool.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "common/clock.hpp"
#include "common/pages.hpp"
#include "process.hpp"
#include "random.hpp"
#include "transport/descriptor.hpp"
#include "transport/shm/segment_pool.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

using shm::GroupFormation;
using shm::SegmentPool;
using shm::Decision;
using Memory = std::shared_ptr<std::byte>;

constexpr std::size_t segment_bytes = 20000;

bool never() { return false; }

// A file for so many ranks, of this process unless `pids` tells others.
class Pools {
 public:
  Pools(int ranks, std::size_t stride, std::vector<int> pids = {})
      : stride_(stride), pids_(std::move(pids)), file_(memfd_create("torsh-test", MFD_CLOEXEC)) {
    pids_.resize(static_cast<std::size_t>(ranks), getpid());
    if (file_.number() < 0 || ftruncate(file_.number(), static_cast<off_t>(stride * pids_.size())) != 0) {
      throw std::system_error(errno, std::generic_category(), "memfd");
    }
  }

  std::shared_ptr<SegmentPool> of(int rank) const { return SegmentPool::make({file_.number(), 0, stride_, rank, pids_}); }
  int ranks() const { return static_cast<int>(pids_.size()); }
  // Bytes that the file takes.
  std::size_t present() const {
    struct stat facts {};
    fstat(file_.number(), &facts);
    return static_cast<std::size_t>(facts.st_blocks) * 512;
  }

  // body(rank, its pool) on a thread each.
  void run(const std::function<void(int, const std::shared_ptr<SegmentPool>&)>& body) const {
    std::vector<std::exception_ptr> errors(pids_.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank, of(rank));
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

 private:
  const std::size_t stride_;
  std::vector<int> pids_;
  Descriptor file_;
};

std::unique_ptr<GroupFormation> form(const std::shared_ptr<SegmentPool>& pool, std::uint64_t name, std::vector<int> members,
                                  std::size_t bytes = segment_bytes) {
  return std::make_unique<GroupFormation>(pool, std::array<std::uint64_t, 2>{name, ~name}, std::move(members), bytes);
}

Decision decision(GroupFormation& formation) {
  const double until = now() + patience;
  while (now() < until) {
    const Decision found = formation.wait(0.2, never);
    if (found != Decision::open) return found;
  }
  return Decision::open;
}

// What a member puts into its part of a segment, which nobody else may have used since it was zeros.
class Mark {
 public:
  Mark(Memory memory, std::size_t index, std::byte value) : memory_(std::move(memory)), at_(memory_.get() + index * 1000), value_(value) {
    expect(std::all_of(at_, at_ + 1000, [](std::byte each) { return each == std::byte{0}; }), "a segment was not zeros");
    std::fill(at_, at_ + 1000, value_);
  }
  void check() const {
    expect(std::all_of(at_, at_ + 1000, [this](std::byte each) { return each == value_; }), "two groups have the same memory");
  }

 private:
  Memory memory_;
  std::byte* at_;
  std::byte value_;
};

// Groups of random members that live for various times, some names again and again.
void groups_that_come_and_go() {
  constexpr int ranks = 5, rounds = 300;
  const Pools pools(ranks, 4 << 20);
  pools.run([&](int rank, const std::shared_ptr<SegmentPool>& pool) {
    Random own(static_cast<std::uint64_t>(rank) + 1);
    std::deque<Mark> alive;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      Random random(round + 1000);
      std::vector<int> members;
      for (int each = 0; each < ranks; ++each) {
        if (!random.one_in(3)) members.insert(members.begin() + static_cast<std::ptrdiff_t>(random.below(members.size() + 1)), each);
      }
      const auto place = std::find(members.begin(), members.end(), rank);
      if (place == members.end()) continue;
      std::uint64_t name = random.one_in(2) ? 7 : round * 31 + 100;
      for (const int member : members) name = mixed(name) + static_cast<std::uint64_t>(member);
      const auto formation = form(pool, name, members);
      expect(decision(*formation) == Decision::here, "a group was not made");
      alive.emplace_back(formation->take(), static_cast<std::size_t>(place - members.begin()), static_cast<std::byte>(round % 255 + 1));
      for (const Mark& mark : alive) mark.check();
      while (alive.size() > own.below(12)) alive.pop_front();
    }
  });
  expect(pools.present() < ranks * 16 * page, "memory of groups that are gone was kept");
}

// Two groups of the same ranks, made by two threads of each in any order.
void two_threads_of_a_rank() {
  const Pools pools(2, 4 << 20);
  pools.run([&](int rank, const std::shared_ptr<SegmentPool>& pool) {
    std::vector<std::thread> threads;
    std::atomic<int> made{0};
    for (std::uint64_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint64_t round = 0; round < 100; ++round) {
          const auto formation = form(pool, round * 3 + thread + 1, {0, 1});
          if (decision(*formation) != Decision::here) return;
          const Mark mark(formation->take(), static_cast<std::size_t>(rank), std::byte{9});
          mark.check();
          ++made;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    expect(made == 300, "a group was not made");
  });
}

// Who wants another segment, or gives up, sends all elsewhere; the next group is made here.
void a_member_that_disagrees() {
  const Pools pools(3, 4 << 20);
  pools.run([&](int rank, const std::shared_ptr<SegmentPool>& pool) {
    const auto unlike = form(pool, 1, {2, 0, 1}, rank == 1 ? 2 * segment_bytes : segment_bytes);
    expect(decision(*unlike) == Decision::elsewhere, "segments of two sizes were one");
    const auto left = form(pool, 2, {0, 1, 2});
    if (rank == 1) left->leave();
    else if (rank == 0) expect(left->wait(0.2, never) == Decision::open && left->missing() == std::vector<int>{1}, "who is missing is not known");
    if (rank == 0) left->leave();
    expect(decision(*left) != Decision::here, "a group was made without a member");
    expect(left->take() == nullptr, "a group that was not made has memory");
    expect(decision(*form(pool, 3, {1, 2, 0})) == Decision::here, "the next group was not made");
  });
  expect(pools.present() < 3 * 16 * page, "memory of groups that were not made was kept");
}

void a_pool_that_is_full() {
  const Pools pools(2, 16 * page);
  pools.run([&](int, const std::shared_ptr<SegmentPool>& pool) {
    std::vector<Memory> held;
    for (std::uint64_t name = 1;; ++name) {
      const auto formation = form(pool, name, {0, 1});
      const Decision found = decision(*formation);
      if (found == Decision::elsewhere) break;
      expect(found == Decision::here, "no decision");
      held.push_back(formation->take());
    }
    expect(!held.empty(), "not even one group was made");
    held.clear();
    const auto met = form(pool, 1000, {1, 0});  // the other part; all have let go when it is there
    expect(decision(*met) == Decision::here, "the other rank's part is full too");
    expect(decision(*form(pool, 1001, {0, 1})) == Decision::here, "what was given back is not used again");
  });
}

// Of two ranks, one is another process, which ends before it comes, or when it has.
void a_member_that_dies() {
  Process sleeper;
  const Pools pools(2, 4 << 20, {getpid(), sleeper.pid()});
  const auto own = pools.of(0), theirs = pools.of(1);
  const auto waiting = form(own, 1, {0, 1}), seeking = form(own, 2, {1, 0});
  expect(waiting->wait(0.1, never) == Decision::open && waiting->ended().empty(), "a member that lives has ended");
  sleeper.end();
  expect(waiting->wait(patience, never) == Decision::open && waiting->ended() == std::vector<int>{1}, "a death was not noticed");
  expect(seeking->wait(patience, never) == Decision::open && seeking->ended() == std::vector<int>{0}, "the first one's death was not noticed");
  waiting->leave();
  const auto one = form(own, 3, {0, 1}), other = form(theirs, 3, {0, 1});
  expect(other->wait(0.1, never) == Decision::open, "found before the first one decides");
  expect(decision(*one) == Decision::here, "not made");
  const std::size_t before = pools.present();
  Memory memory = one->take();
  std::fill(memory.get(), memory.get() + segment_bytes, std::byte{1});
  memory.reset();
  (void)form(own, 4, {0, 1});
  expect(pools.present() <= before, "memory that only a dead member holds was kept");
}

// Not under emulators that only say so.
bool gives_memory_back() {
  try {
    (void)Pools(1, 16 * page).of(0);
    return true;
  } catch (const std::system_error& error) {
    if (error.code().value() != ENOTSUP) throw;
    std::fprintf(stderr, "scenes of the pool are left out: %s\n", error.what());
    return false;
  }
}

}  // namespace

std::vector<Scene> pool_scenes() {
  if (!gives_memory_back()) return {};
  return {
      {"groups that come and go", groups_that_come_and_go},
      {"two threads of a rank make groups", two_threads_of_a_rank},
      {"a member that disagrees about a group", a_member_that_disagrees},
      {"a pool that is full", a_pool_that_is_full},
      {"a member that dies before a group is made", a_member_that_dies},
  };
}

}  // namespace torsh::test
