// A value per rank, without an allocation for the numbers of ranks that fit a node.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace torsh {

template <typename T>
class PerRank {
 public:
  explicit PerRank(int ranks) {
    if (static_cast<std::size_t>(ranks) > few_.size()) many_.resize(static_cast<std::size_t>(ranks));
  }
  T* data() { return many_.empty() ? few_.data() : many_.data(); }
  T& operator[](int rank) { return data()[rank]; }

 private:
  std::array<T, 64> few_;
  std::vector<T> many_;
};

}  // namespace torsh
