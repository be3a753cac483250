// Memory that the operations of a group borrow, one operation after the other.
#pragma once

#include <cstddef>
#include <list>
#include <memory>

#include "common/prefetch.hpp"

namespace torsh {

// Kept from operation to operation: to touch fresh pages takes longer than to reduce them. Used by
// one thread at a time.
class Scratch {
  struct alignas(cache_line) Line {
    std::byte bytes[cache_line];
  };
  struct Block {
    std::unique_ptr<Line[]> lines;
    std::size_t count = 0;
    bool lent = false;
  };

 public:
  // Aligned memory, given back when this ends.
  class Loan {
   public:
    explicit Loan(Block& block) : block_(block) { block_.lent = true; }
    ~Loan() { block_.lent = false; }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    std::byte* data() const { return block_.lines[0].bytes; }

   private:
    Block& block_;
  };

  // Throws std::bad_alloc.
  Loan take(std::size_t bytes);

 private:
  Block& choose(std::size_t lines);

  std::list<Block> blocks_;
};

}  // namespace torsh
