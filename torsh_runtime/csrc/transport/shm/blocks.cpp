#include "transport/shm/blocks.hpp"

#include <iterator>

#include "common/pages.hpp"

namespace torsh::shm {

Blocks::Entry* Blocks::around(std::size_t offset, std::size_t bytes) {
  const auto after = given_.upper_bound(offset);
  if (after == given_.begin()) return nullptr;
  Entry& found = *std::prev(after);
  const std::size_t within = offset - found.first;
  if (within > found.second.bytes || bytes > found.second.bytes - within) return nullptr;
  return &found;
}

// The smallest that fits, which breaks up the fewest others.
Blocks::Frees::iterator Blocks::best(std::size_t bytes, bool present) {
  auto found = free_.end();
  for (auto each = free_.begin(); each != free_.end(); ++each) {
    const bool fits = each->second.bytes >= bytes && (each->second.turn != 0) == present;
    if (fits && (found == free_.end() || each->second.bytes < found->second.bytes)) found = each;
  }
  return found;
}

std::optional<Blocks::Taken> Blocks::take(std::size_t bytes, bool zero) {
  bytes = round_up(bytes, page);
  auto found = best(bytes, !zero);
  if (found == free_.end()) found = best(bytes, zero);
  if (found == free_.end()) return std::nullopt;
  const auto [offset, range] = *found;
  free_.erase(found);
  if (range.bytes > bytes) free_[offset + bytes] = {range.bytes - bytes, range.turn};
  if (range.turn != 0) present_ -= bytes;
  given_[offset] = {.bytes = bytes};
  return Taken{offset, range.turn == 0};
}

// Only neighbours that are alike make one: whether memory is present is known of whole ranges.
void Blocks::insert(std::size_t offset, std::size_t bytes, std::uint64_t turn) {
  if (turn != 0) present_ += bytes;
  auto after = free_.lower_bound(offset);
  const auto alike = [&](const Free& other) { return (other.turn != 0) == (turn != 0); };
  if (after != free_.end() && after->first == offset + bytes && alike(after->second)) {
    bytes += after->second.bytes;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.bytes == offset && alike(before->second)) {
      before->second = {before->second.bytes + bytes, turn};
      return;
    }
  }
  free_[offset] = {bytes, turn};
}

void Blocks::give_back(std::size_t offset, bool present) {
  const std::size_t bytes = given_.at(offset).bytes;
  given_.erase(offset);
  insert(offset, bytes, present ? ++turn_ : 0);
}

std::optional<Blocks::Range> Blocks::next_to_drop() {
  if (present_ <= kept_) return std::nullopt;
  auto oldest = free_.end();
  for (auto each = free_.begin(); each != free_.end(); ++each) {
    if (each->second.turn == 0) continue;
    if (oldest == free_.end() || each->second.turn < oldest->second.turn) oldest = each;
  }
  const Range dropped{oldest->first, oldest->second.bytes};
  free_.erase(oldest);
  present_ -= dropped.bytes;
  insert(dropped.offset, dropped.bytes, 0);
  return dropped;
}

}  // namespace torsh::shm
