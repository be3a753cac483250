// What the collectives of a node share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "common/copy.hpp"
#include "common/kernels.hpp"
#include "common/line_count.hpp"
#include "common/prefetch.hpp"
#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// Calls body(first byte, bytes) for each block of at most `limit` bytes. Without any bytes it calls once with none,
// since ranks must take part in every operation.
template <typename Body>
void for_blocks(std::size_t bytes, std::size_t limit, Body body) {
  std::size_t at = 0;
  do {
    const std::size_t length = std::min(limit, bytes - at);
    body(at, length);
    at += length;
  } while (at < bytes);
}

// Calls body(peer) for all other ranks, on each rank in a different order.
template <typename Body>
void for_peers(const shm::Channel& channel, Body body) {
  for (int peer = channel.rank() + 1; peer < channel.ranks(); ++peer) body(peer);
  for (int peer = 0; peer < channel.rank(); ++peer) body(peer);
}

// One of `pieces`, by rank.
inline const Piece& of(Pieces pieces, int rank) { return pieces[static_cast<std::size_t>(rank)]; }

inline std::size_t longest(Pieces pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes = std::max(bytes, piece.bytes);
  return bytes;
}

inline std::size_t total(Pieces pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

// The number of a piece's bytes in the block of `limit` bytes that begins at `at`.
inline std::size_t within(std::size_t bytes, std::size_t at, std::size_t limit) {
  return std::min(bytes - std::min(bytes, at), limit);
}

// Between two buffers of this rank, which may be the same one.
inline void copy_own(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

// From what another rank has written.
inline void copy_fetched(std::byte* to, const std::byte* from, std::size_t bytes) {
  count_lines(bytes);
  copy_shared(to, from, bytes);
}

// Each rank's share of a slot, in whole lines.
inline std::size_t share_of_slot(const shm::Channel& channel) {
  return channel.tuning().block_bytes / static_cast<std::size_t>(channel.ranks()) / cache_line * cache_line;
}

}  // namespace torsh::in_node
