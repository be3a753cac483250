#include "lines.hpp"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/line_count.hpp"
#include "steps.hpp"

namespace torsh::test {
namespace {

using Counts = std::vector<std::size_t>;

// Of each rank, for one step of a group that takes itself to have a processor for each; out of reach of
// each other, so that all data go through lines that are counted.
Counts count(int ranks, const Step& step, shm::Tuning tuning) {
  Counts counts(static_cast<std::size_t>(ranks));
  World({.nodes = {ranks}, .cross_memory = false, .processors = CPU_SETSIZE, .tuning = tuning}).run([&](Member& member) {
    Memory memory;
    Task task(step, member.rank, member.ranks, memory);
    task.perform(member.group, patience);  // what the first one sets up
    fetched_lines = 0;
    task.perform(member.group, patience);
    counts[static_cast<std::size_t>(member.rank)] = fetched_lines;
  });
  return counts;
}

std::size_t most(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()); }

Step step_of(OpKind kind, std::size_t bytes) {
  return {.kind = kind, .dtype = DType::int32, .op = ReduceOp::max, .count = bytes / 4};
}

void expect_lines(std::size_t found, std::size_t wanted, const char* what) {
  if (found != wanted) {
    throw Wrong(std::string(what) + ": " + std::to_string(found) + " lines instead of " + std::to_string(wanted));
  }
}

// A barrier of one level fetches n - 1 lines; in one of two a leader its members' and the other leaders', the
// others one.
void check_barriers() {
  const Step barrier{.kind = OpKind::barrier};
  shm::Tuning tuning = shm::default_tuning(9);
  expect_lines(most(count(9, barrier, tuning)), 8, "a barrier of 9 ranks, of one level");
  tuning.two_levels_from = 9;
  expect_lines(most(count(9, barrier, tuning)), 2 + 2, "a barrier of 9 ranks, of two levels");
  expect_lines(count(9, barrier, tuning)[1], 1, "a member");
  expect_lines(most(count(64, barrier, shm::default_tuning(64))), 7 + 7, "a barrier of 64 ranks");
}

// Where every rank reduces everything it fetches all of it from all others; in blocks a part from each, and
// what the others have made of the rest.
void check_all_reduces() {
  const Step step = step_of(OpKind::all_reduce, 4096);
  shm::Tuning tuning = shm::default_tuning(8);
  tuning.whole_limit = 4096;
  expect_lines(most(count(8, step, tuning)), 7 + 7 * 64, "4 KiB reduced by each of 8 ranks");
  expect_lines(most(count(8, step, shm::default_tuning(8))), 2 * 7 + 7 * 8 + 7 * 8, "4 KiB reduced by 8 ranks in parts");
}

}  // namespace

void check_lines() {
  check_barriers();
  check_all_reduces();
}

void print_lines() {
  const std::vector<std::pair<const char*, Step>> steps{
      {"barrier", {.kind = OpKind::barrier}},
      {"all_reduce of 8 bytes", step_of(OpKind::all_reduce, 8)},
      {"all_reduce of 512 bytes", step_of(OpKind::all_reduce, 512)},
      {"all_reduce of 4 KiB", step_of(OpKind::all_reduce, 4 << 10)},
      {"all_reduce of 64 KiB", step_of(OpKind::all_reduce, 64 << 10)},
      {"broadcast of 4 KiB", step_of(OpKind::broadcast, 4 << 10)},
      {"all_gather of 64 bytes", step_of(OpKind::all_gather, 64)},
      {"reduce_scatter of 64 bytes", step_of(OpKind::reduce_scatter, 64)},
      {"all_to_all of 64 bytes", step_of(OpKind::all_to_all, 64)},
  };
  const std::vector<int> worlds{2, 8, 31, 32, 64, 128, 192};
  std::printf("| lines that a rank fetches at most |");
  for (const int ranks : worlds) std::printf(" %d |", ranks);
  for (const auto& [name, step] : steps) {
    std::printf("\n| %s |", name);
    for (const int ranks : worlds) std::printf(" %zu |", most(count(ranks, step, shm::default_tuning(ranks))));
  }
  std::printf("\n");
}

}  // namespace torsh::test
