// Accesses the other ranks' buffers in place, in mapped regions or by cross-memory attach. One copy, where slots take
// two.
#pragma once

#include <cstdint>
#include <vector>

#include "common/per_rank.hpp"
#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// The location of a buffer, as its owner announces it to its peers.
struct Place {
  enum class Kind : std::uint32_t { nowhere, process, region };  // in ascending order of ease

  Kind kind;
  std::uint64_t at;  // an address in the owner's process, or an offset in the region
  std::uint64_t region;
};

class Direct {
 public:
  // `written` is the least number of bytes that all ranks together are going to write: see copy_streaming.
  // `cross_memory` and `array` are the sizes from which cross-memory attach pays, and asking whether ordinary arrays
  // are mapped.
  Direct(shm::Channel& channel, std::size_t written, std::size_t cross_memory, std::size_t array);

  // Whether something may be faster than slots if each rank takes about `bytes` from each other rank.
  bool pays(std::size_t bytes) const { return cross_memory_pays(bytes) || regions_pay(bytes); }
  // Whether mapped buffers would be.
  bool regions_pay(std::size_t bytes) const;
  // How the peers can access a buffer. An ordinary array is lent to them for the lifetime of this object.
  Place place(const Piece& buffer, std::size_t bytes);
  // If it pays, exchanges the locations of all buffers in one round. Returns whether all can be accessed. `bytes`
  // must be the same on all ranks.
  bool exchange_places(const Piece& own, std::size_t bytes);
  // The exchanged locations: a peer's, and whether all are in regions.
  const Place& of(int peer) { return places_[peer]; }
  bool all_mapped() const { return all_mapped_; }

  // A peer's buffer, if it is mapped; else null.
  std::byte* mapped(int peer, const Place& place) const;
  // At most piece_bytes() of a peer's buffer, in place or copied to room_of(peer).
  const std::byte* fetch(int peer, const Place& from, std::size_t at, std::size_t bytes);
  std::size_t piece_bytes() const;
  std::byte* room_of(int rank);
  // Copies from or to offset `at` of a peer's buffer. The peer must be Exposed to be pushed to.
  void pull(int peer, std::byte* to, const Place& from, std::size_t at, std::size_t bytes);
  void push(int peer, const Place& to, std::size_t at, const std::byte* from, std::size_t bytes);
  // Copies between buffers of this process, which may be one and the same.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;

 private:
  bool cross_memory_pays(std::size_t bytes) const;
  void read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes);
  [[noreturn]] void lose(int peer);

  shm::Channel& channel_;
  const bool streams_, detours_;
  const std::size_t cross_memory_, array_;
  std::vector<shm::Loan> loans_;
  PerRank<Place> places_;
  bool all_mapped_ = false;
};

}  // namespace torsh::in_node
