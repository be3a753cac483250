// Parameters of a node's groups (benchmarks/tune.py).
#pragma once

#include <algorithm>
#include <cstddef>

#include "common/pages.hpp"

namespace torsh::shm {

// Limits between algorithms, in bytes; the same on all ranks.
struct Tuning {
  std::size_t whole_limit = 4 << 10;          // all_reduce: up to here every rank reduces everything in one round
  std::size_t crowded_whole_limit = 4 << 10;  // the same where ranks share CPUs
  std::size_t block_bytes = 512 << 10;        // larger buffers go through the slots in blocks of this size
  // Rounds have two levels from this number of ranks on, with a CPU each. With one level a rank reads n - 1 lines,
  // several at a time. With two it reads about twice the square root of n, in three steps that each wait for the one
  // before. The limit follows from the count of lines alone (tests/csrc/lines.cpp), at four lines at a time.
  int two_levels_from = 32;
  // From this number of ranks sharing CPUs on, the last rank to arrive at a round wakes all others. 8 ranks are no
  // faster that way than by taking turns. 64 take a quarter of the time where the scheduler gives each its share.
  int broadcast_wake_from = 16;
  // From this number of ranks sharing CPUs on, one rank reduces small arrays for all: 64 take half the time.
  int single_rank_from = 32;
};

constexpr std::size_t slot_bytes(const Tuning& tuning) {
  return std::max({tuning.whole_limit, tuning.crowded_whole_limit, tuning.block_bytes});
}

// The smallest block: two cache lines for each rank, which works on its own part.
constexpr std::size_t least_block(int ranks) { return 128 * static_cast<std::size_t>(ranks); }

// Defaults without a measurement. A rank that reduces b bytes alone fetches (n - 1) * b from other caches in one
// round; in blocks it fetches about 2 * b in two. So the limit falls with n. It falls later where a round costs a
// turn of all ranks, but sooner again where one rank reduces for all, which is also one turn. The blocks of all ranks
// together should stay in the CPUs' own caches (1 MiB), but a rank's part of a block should take longer than the
// rounds (8 KiB), as far as memory allows (32 MiB for 64 ranks). Measured with blocks of 128 KiB to 4 MiB on 2 and 4
// ranks, and of 64 KiB to 512 KiB on 16 to 64.
constexpr Tuning default_tuning(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t whole = ranks <= 2 ? 1 << 10 : std::clamp<std::size_t>((64 << 10) / (n * n), 128, 4 << 10);
  const std::size_t shared = ranks < Tuning{}.single_rank_from ? 64 << 10 : 32 << 10;
  const std::size_t crowded = ranks <= 2 ? 1 << 10 : std::clamp<std::size_t>(shared / n, 128, 4 << 10);
  const std::size_t least = std::clamp<std::size_t>((8 << 10) * n, 64 << 10, 256 << 10);
  const std::size_t block = std::clamp<std::size_t>((1 << 20) / n / least_page * least_page, least, 512 << 10);
  return {whole, crowded, std::max(block, round_up(least_block(ranks), least_page))};
}

// The fan-in of the two-level barrier: the number of ranks that share a leader, including it. It minimises the number
// of ranks that a leader waits for, both its members and the other leaders. Where `near` consecutive ranks share a
// cache, a leader's ranks are a part of such a row, or several rows.
constexpr int barrier_fan_in(int ranks, int near = 1) {
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
