// Getting at the other ranks' buffers in place: in regions, or through the system's copying between
// processes. One copy, where slots take two.
#pragma once

#include <cstdint>
#include <vector>

#include "common/per_rank.hpp"
#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// Where a buffer lies, as its owner tells its peers.
struct Place {
  enum class Kind : std::uint32_t { nowhere, process, region };  // ever easier to get at

  Kind kind;
  std::uint64_t at;  // an address in the owner's process, or an offset in the region
  std::uint64_t region;
};

class Direct {
 public:
  // `written` is how much all ranks together are going to write, at least: see copy_streaming. From `reach`
  // bytes on the system's copying pays, and from `array` on asking whether ordinary arrays are mapped.
  Direct(shm::Channel& channel, std::size_t written, std::size_t reach, std::size_t array);

  // Whether there may be a better way than the slots where each rank takes about `bytes` from each
  // other one.
  bool pays(std::size_t bytes) const { return reach_pays(bytes) || regions_pay(bytes); }
  // The same if there are mapped buffers.
  bool regions_pay(std::size_t bytes) const;
  // How the peers can get at a buffer then. One of an ordinary array is lent to them until the end.
  Place place(const Piece& buffer, std::size_t bytes);
  // If it pays, one round, in which every rank tells where its buffer lies. True if all can be got
  // at. `bytes` must be the same on all ranks.
  bool meet(const Piece& own, std::size_t bytes);
  // What they told: of a peer, and whether all their buffers are in regions.
  const Place& of(int peer) { return places_[peer]; }
  bool all_mapped() const { return all_mapped_; }

  // A peer's buffer, if it is mapped; else null.
  std::byte* mapped(int peer, const Place& place) const;
  // At most piece_bytes() of a peer's buffer, where they are or else in room_of(peer).
  const std::byte* fetch(int peer, const Place& from, std::size_t at, std::size_t bytes);
  std::size_t piece_bytes() const;
  std::byte* room_of(int rank);
  // Copies from or to offset `at` of a peer's buffer. The peer must be Exposed to be pushed to.
  void pull(int peer, std::byte* to, const Place& from, std::size_t at, std::size_t bytes);
  void push(int peer, const Place& to, std::size_t at, const std::byte* from, std::size_t bytes);
  // Copies between buffers of this process, which may be one and the same.
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const;

 private:
  bool reach_pays(std::size_t bytes) const;
  void read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes);
  [[noreturn]] void lose(int peer);

  shm::Channel& channel_;
  const bool streams_, detours_;
  const std::size_t reach_, array_;
  std::vector<shm::Loan> loans_;
  PerRank<Place> places_;
  bool all_mapped_ = false;
};

}  // namespace torsh::in_node
