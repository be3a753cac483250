#include "rpc/blocks.hpp"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <new>

#include "common/pages.hpp"

namespace torsh::rpc {
namespace {

constexpr std::size_t least_mapped = 64 << 10;
constexpr std::size_t huge_page = 2 << 20;
constexpr std::size_t most_kept = 128 << 20;
constexpr std::align_val_t block_alignment{64};

// Sizes of a few steps for each power of two, so that blocks fit again.
std::size_t rounded(std::size_t bytes) { return round_up(bytes, std::max(std::bit_floor(bytes) / 8, least_page)); }

std::byte* mapped(std::size_t bytes) {
  const std::size_t spare = bytes >= huge_page ? huge_page : 0;
  void* const start = mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  if (spare == 0) return static_cast<std::byte*>(start);
  const auto at = reinterpret_cast<std::uintptr_t>(start);
  const std::uintptr_t aligned = round_up(at, huge_page);
  if (aligned != at) munmap(start, aligned - at);
  if (aligned - at != spare) munmap(reinterpret_cast<void*>(aligned + bytes), spare - (aligned - at));
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

Blocks::~Blocks() {
  for (const auto& [bytes, blocks] : free_) {
    for (std::byte* block : blocks) munmap(block, bytes);
  }
}

BlockPtr Blocks::take(std::size_t bytes) {
  if (bytes < least_mapped) {
    auto* const small = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), block_alignment));
    return {small, [](std::byte* block) { ::operator delete(block, block_alignment); }};
  }
  const std::size_t size = rounded(bytes);
  std::byte* block = reused(size);
  if (block == nullptr) block = mapped(size);
  return {block, [size, self = shared_from_this()](std::byte* owned) { self->give_back(owned, size); }};
}

std::byte* Blocks::reused(std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = free_.find(bytes);
  if (found == free_.end() || found->second.empty()) return nullptr;
  std::byte* const block = found->second.back();
  found->second.pop_back();
  kept_ -= bytes;
  return block;
}

void Blocks::give_back(std::byte* block, std::size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_ + bytes <= most_kept) {
      free_[bytes].push_back(block);
      kept_ += bytes;
      return;
    }
  }
  munmap(block, bytes);
}

}  // namespace torsh::rpc
