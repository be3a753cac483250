// Who has entered an operation between nodes, for the recording: each message tells whom its sender knows of, so a
// rank may know of all before its part is done. In reductions to a root, say, it never does.
#pragma once

#include <cstdint>

#include "collectives/layout.hpp"

namespace torsh::across {

class Attendance {
 public:
  Attendance() = default;
  // A bit stands for all ranks of a node, or `by_rank` for one. Of more than 64 nothing is ever known.
  Attendance(const Layout& layout, bool by_rank) {
    const int all = by_rank ? layout.ranks() : layout.num_nodes();
    if (all > most) return;
    all_ = all == most ? ~std::uint64_t{0} : bit(all) - 1;
    if (!by_rank) {
      neighbours_ = bit(layout.node);
      return;
    }
    own_ = bit(layout.rank);
    for (const int rank : layout.local()) neighbours_ |= bit(rank);
  }

  // An operation begins.
  void begin() {
    known_ = own_;
    time_ = 0;
  }
  // All ranks of this node are there, as was known at that time.
  void meet_neighbours(std::uint64_t time) { hear(neighbours_, time); }
  // Those are that another rank has told of.
  void hear(std::uint64_t seen, std::uint64_t time) {
    if ((seen & ~known_) == 0) return;
    known_ |= seen;
    time_ = time > time_ ? time : time_;
  }
  // What to tell others.
  std::uint64_t known() const { return known_; }
  bool is_complete() const { return all_ != 0 && (known_ & all_) == all_; }
  // When the last of them was known to be there, in ticks.
  std::uint64_t time() const { return time_; }

 private:
  static constexpr int most = 64;
  static std::uint64_t bit(int place) { return std::uint64_t{1} << place; }

  std::uint64_t all_ = 0, own_ = 0, neighbours_ = 0, known_ = 0, time_ = 0;
};

}  // namespace torsh::across
