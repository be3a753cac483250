// Memory that all ranks of a node have mapped: what lies in it can be read and written in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transport/shm/shared_heap.hpp"

namespace torsh::shm {

class Regions {
 public:
  // Of one rank's memory, in words that all ranks understand.
  struct Spot {
    std::uint64_t region, offset;
  };

  // Every rank gives `bytes` bytes; bases[r] is where rank r's are mapped in this process, as long
  // as the group lives. All ranks add the same regions between the same operations.
  void add(std::uint64_t region, int rank, std::size_t bytes, std::vector<std::byte*> bases);
  bool empty() const { return regions_.empty(); }
  // The same of the memory of ordinary arrays, at most one.
  void add(std::shared_ptr<SharedHeap> heap, std::vector<std::byte*> bases);
  bool has_heap() const { return heap_ != nullptr; }

  // Where these bytes lie in this rank's own part of a region, if they do. Those of an array are lent
  // as long as what is added to `loans` lives.
  std::optional<Spot> find(const std::byte* data, std::size_t bytes, std::vector<Loan>& loans) const;
  // What a peer has found there, in this process.
  std::byte* at(int peer, const Spot& spot) const;

 private:
  struct Region {
    std::uint64_t number;
    std::byte* own;
    std::size_t bytes;
    std::vector<std::byte*> bases;
  };

  std::vector<Region> regions_;  // by address of the own part
  std::shared_ptr<SharedHeap> heap_;
  std::vector<std::byte*> heap_bases_;
};

}  // namespace torsh::shm
