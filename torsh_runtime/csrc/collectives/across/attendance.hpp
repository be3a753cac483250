// The ranks that have entered an operation between nodes, for the recording. Each message carries the ranks that its
// sender knows of, so a rank may know of all before its part is done. In some operations, such as reductions to a
// root, it never does.
#pragma once

#include <cstdint>

#include "collectives/layout.hpp"

namespace torsh::across {

class Attendance {
 public:
  Attendance() = default;
  // A bit stands for all ranks of a node, or for one rank if `by_rank`. With more than 64 nothing is known.
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
  // All ranks of this node have entered, as was known at that time.
  void note_neighbours(std::uint64_t time) { learn(neighbours_, time); }
  // Adds the ranks that another rank knows of.
  void learn(std::uint64_t seen, std::uint64_t time) {
    if ((seen & ~known_) == 0) return;
    known_ |= seen;
    time_ = time > time_ ? time : time_;
  }
  // The ranks to tell others of.
  std::uint64_t known() const { return known_; }
  bool is_complete() const { return all_ != 0 && (known_ & all_) == all_; }
  // The time in ticks when the last of them was known to have entered.
  std::uint64_t time() const { return time_; }

 private:
  static constexpr int most = 64;
  static std::uint64_t bit(int place) { return std::uint64_t{1} << place; }

  std::uint64_t all_ = 0, own_ = 0, neighbours_ = 0, known_ = 0, time_ = 0;
};

}  // namespace torsh::across
