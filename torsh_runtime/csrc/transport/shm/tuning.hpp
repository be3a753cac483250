// What a node's groups can be tuned by (benchmarks/tune.py).
#pragma once

#include <algorithm>
#include <cstddef>

#include "common/pages.hpp"

namespace torsh::shm {

// Where one algorithm gives way to the next, in bytes; the same on all ranks.
struct Tuning {
  std::size_t whole_limit = 4 << 10;          // all_reduce: up to here every rank reduces everything in one round
  std::size_t crowded_whole_limit = 4 << 10;  // the same where ranks share processors
  std::size_t block_bytes = 512 << 10;        // larger buffers go through the slots in blocks of this size
  // From so many ranks on, with a processor each, rounds are of two levels. In one of one level a rank reads
  // n - 1 lines, several at a time; in one of two about twice the root of n, in three steps of which each waits
  // for the one before. By the count of lines alone (tests/csrc/lines.cpp), at four lines at a time.
  int two_levels_from = 32;
  // From so many ranks on that share processors the last one to come to a round wakes all others. For 8 it is no
  // quicker than to let them take turns; 64 take a quarter of the time where the scheduler gives each its share.
  int gathering_from = 16;
  // From so many ranks on that share processors one of them reduces small arrays for all: 64 take half the time.
  int by_one_from = 32;
};

constexpr std::size_t slot_bytes(const Tuning& tuning) {
  return std::max({tuning.whole_limit, tuning.crowded_whole_limit, tuning.block_bytes});
}

// The least that a block may be: two cache lines for each rank, which works on its own part.
constexpr std::size_t least_block(int ranks) { return 128 * static_cast<std::size_t>(ranks); }

// Without a measurement. To reduce b bytes by itself each of n ranks fetches (n - 1) * b from others' caches, in
// one round; in blocks it is about 2 * b, in two. So the limit falls with n, and later where a round costs a
// turn of all ranks; but sooner again where one rank reduces for all, which is one turn, too. Blocks of all
// ranks together should stay in the processors' own caches (1 MiB), but each rank's part of a block should take
// longer than the rounds (8 KiB), as far as memory allows (32 MiB for 64 ranks). Measured with blocks of 128 KiB
// to 4 MiB on 2 and 4 ranks, of 64 KiB to 512 KiB on 16 to 64.
constexpr Tuning default_tuning(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t whole = ranks <= 2 ? 1 << 10 : std::clamp<std::size_t>((64 << 10) / (n * n), 128, 4 << 10);
  const std::size_t shared = ranks < Tuning{}.by_one_from ? 64 << 10 : 32 << 10;
  const std::size_t crowded = ranks <= 2 ? 1 << 10 : std::clamp<std::size_t>(shared / n, 128, 4 << 10);
  const std::size_t least = std::clamp<std::size_t>((8 << 10) * n, 64 << 10, 256 << 10);
  const std::size_t block = std::clamp<std::size_t>((1 << 20) / n / least_page * least_page, least, 512 << 10);
  return {whole, crowded, std::max(block, round_up(least_block(ranks), least_page))};
}

// How many ranks have a leader in common, who is one of them: so many that a leader waits for as few as possible,
// of its squad and of the other leaders. Where `near` ranks in a row share a cache a squad is a part of those, or
// several such rows.
constexpr int squad_size(int ranks, int near = 1) {
  int best = near, least = ranks + 1;
  for (int size = 1; size <= ranks; ++size) {
    const int awaited = size - 1 + (ranks + size - 1) / size - 1;
    if ((size % near != 0 && near % size != 0) || awaited >= least) continue;
    best = size;
    least = awaited;
  }
  return best;
}

}  // namespace torsh::shm
