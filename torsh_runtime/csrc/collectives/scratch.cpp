#include "collectives/scratch.hpp"

namespace torsh {

Scratch::Loan Scratch::take(std::size_t bytes) {
  const std::size_t count = bytes / cache_line + 1;
  Block& block = choose(count);
  if (block.count < count) {
    block = {};  // before the new memory is asked for
    block.lines = std::make_unique_for_overwrite<Line[]>(count);
    block.count = count;
  }
  return Loan(block);
}

// The smallest that suffices; if none does, one that has to grow.
Scratch::Block& Scratch::choose(std::size_t lines) {
  Block* best = nullptr;
  for (Block& block : blocks_) {
    const bool better = best == nullptr || block.count - lines < best->count - lines;  // unsigned: too small is far
    if (!block.lent && better) best = &block;
  }
  return best != nullptr ? *best : blocks_.emplace_back();
}

}  // namespace torsh
