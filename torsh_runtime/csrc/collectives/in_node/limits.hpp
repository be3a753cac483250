// All limits between the algorithms within a node.
//
// They depend on the number of ranks n and on a size in bytes: that of the array for all_reduce, reduce and
// broadcast, else of a rank's largest piece. "Roomy" means a CPU for each rank; without it a round costs a turn of
// all ranks.
//
//   all_reduce, reduce    up to 48                        in the flags' lines
//                         up to whole                     every rank reduces everything, from the slots
//                         up to by_single_rank            all_reduce only: one rank reduces and broadcasts it
//                         from fetch_array on, if roomy   in place, by cross-memory attach
//                         a part of region or more        in place, in mapped memory
//                         else                            in blocks through the slots
//   broadcast             up to 48                        in the flag's line
//                         less than                       in blocks through the root's slot; the root seldom waits
//                           unsynchronised_broadcast
//                         from cross_memory or            in place
//                           region on
//                         else                            in blocks through the root's slot
//   all_gather            up to 48                        in the flags' lines
//                         from cross_memory or            in place
//                           region on
//                         else                            in blocks through the slots
//   reduce_scatter        all pieces up to 48             in the flags' lines
//                         from fetch_piece or             in place
//                           region on
//                         else                            in blocks through the slots
//   gather, scatter,      all pieces up to 48             in the flags' lines
//   all_to_all            from cross_memory_pair or       in place, each pair separately
//                           region on
//                         else                            in blocks through the slots
//
// "In place" means by cross-memory attach (from cross_memory on) or in mapped memory: from region on, or from array
// or array_part on where only ordinary arrays can be mapped. It requires that all ranks find they can access what
// they need; otherwise "else" applies.
#pragma once

#include <algorithm>
#include <cstddef>

#include "common/prefetch.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/shared_heap.hpp"

namespace torsh::in_node {

// In bytes. Unless noted, measured with 2 and 4 ranks with a CPU each, and with 2 and 4 ranks per CPU.
struct Limits {
  std::size_t whole;        // of an array that every rank reduces
  std::size_t by_single_rank;  // of an array that one rank reduces for all
  std::size_t fetch_array;  // of an array whose parts each rank fetches from all others
  std::size_t fetch_piece;  // of a piece in reduce_scatter; smaller ones are faster through the slots
  std::size_t cross_memory;  // from here on the system copies from a peer's memory
  std::size_t cross_memory_pair;  // the same where each pair has its own piece, and some are written and some read
  std::size_t region;       // from here on mapped memory is used in place
  std::size_t array;  // the same for ordinary arrays, not all of which are mapped: asking costs a round
  std::size_t array_part;   // the same where each rank takes its part of all others' arrays
  std::size_t unsynchronised_broadcast;  // below this the root does not wait for the other ranks
};

// Of the writes of all ranks together: from here on copies bypass the caches. The system's copy cannot, so it takes a
// detour from detour_limit on. Measured with 2 and 4 ranks on two CPUs that share 32 MiB.
constexpr std::size_t stream_limit = 16 << 20;
constexpr std::size_t detour_limit = 64 << 20;
// The block that the root of a broadcast writes while the others read the last one, with a CPU per rank.
constexpr std::size_t broadcast_block = 64 << 10;

inline Limits limits(int ranks, bool has_cpu_per_rank, const shm::Tuning& tuning) {
  constexpr std::size_t never = ~std::size_t{0};
  const auto n = static_cast<std::size_t>(ranks);
  if (has_cpu_per_rank) {
    return {
        .whole = tuning.whole_limit,
        .by_single_rank = 0,
        .fetch_array = std::max<std::size_t>(32 << 10, n * (8 << 10)),  // a call to the system for each part
        .fetch_piece = 64 << 10,
        .cross_memory = 32 << 10,
        .cross_memory_pair = 64 << 10,
        .region = 1 << 10,
        .array = 64 << 10,
        .array_part = 64 << 10,
        .unsynchronised_broadcast = 128 << 10,
    };
  }
  return {
      .whole = tuning.crowded_whole_limit,
      .by_single_rank = ranks >= tuning.single_rank_from ? std::min<std::size_t>(128 << 10, tuning.block_bytes) : 0,
      .fetch_array = never,
      .fetch_piece = 1 << 20,
      // Data in slots stay in the cache that the ranks of a CPU share: half the time for 128 KiB.
      .cross_memory = 1 << 20,
      .cross_memory_pair = 64 << 10,
      .region = 4 << 10,
      .array = 32 << 10,
      // As soon as such arrays are mapped. 64 ranks take half the time for 256 KiB, and a third for 1 MiB.
      .array_part = std::max<std::size_t>(shm::least_array / n, 4 << 10),
      // With many ranks the rounds of a broadcast in place cost more than copying twice.
      .unsynchronised_broadcast = std::clamp<std::size_t>(n * (16 << 10), 128 << 10, 512 << 10),
  };
}

inline Limits limits(const shm::Channel& channel) {
  return limits(channel.ranks(), channel.has_cpu_per_rank(), channel.tuning());
}

// The piece of a peer's buffer that is fetched at a time. It should fit the CPU's own cache (512 KiB of all peers)
// but be large enough for the cost of a call: 8 KiB copy at two thirds of the speed of 64 KiB. 64 ranks' pieces of
// that size fit the cache that CPUs share.
inline std::size_t fetched_piece(int ranks) {
  constexpr std::size_t cached = 512 << 10, least = 64 << 10;
  return std::max(cached / static_cast<std::size_t>(ranks) / cache_line * cache_line, least);
}

}  // namespace torsh::in_node
