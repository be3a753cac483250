#include "collectives/direct.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "collectives/steps.hpp"
#include "common/clock.hpp"

namespace torsh::in_node {
namespace {

// From so many bytes of each peer on: with a processor for each rank, and without, where a round
// costs more because ranks have to take turns.
constexpr std::size_t reach_limit = 8 << 10, crowded_reach_limit = 32 << 10;
constexpr std::size_t region_limit = 1 << 10, crowded_region_limit = 4 << 10;

}  // namespace

bool Direct::reach_pays(std::size_t bytes) const {
  return channel_.reach().allowed() && bytes >= (channel_.is_roomy() ? reach_limit : crowded_reach_limit);
}

bool Direct::regions_pay(std::size_t bytes) const {
  return !channel_.regions().empty() && bytes >= (channel_.is_roomy() ? region_limit : crowded_region_limit);
}

Place Direct::place(const Piece& buffer, std::size_t bytes) const {
  if (regions_pay(bytes)) {
    const auto spot = channel_.regions().find(buffer.data, buffer.bytes);
    if (spot) return {Place::Kind::region, spot->offset, spot->region};
  }
  if (!reach_pays(bytes) || !channel_.reach().shows(buffer.data, buffer.bytes)) return {};
  return {Place::Kind::process, reinterpret_cast<std::uint64_t>(buffer.data), 0};
}

bool Direct::meet(const Piece& own, std::size_t bytes) {
  if (!pays(bytes)) return false;
  const Place given = place(own, bytes);
  channel_.round(&given, sizeof given);
  Place::Kind least = given.kind;
  for_peers(channel_, [&](int peer) {
    std::memcpy(&places_[peer], channel_.payload(peer), sizeof(Place));
    least = std::min(least, places_[peer].kind);
  });
  all_mapped_ = least == Place::Kind::region;
  return least != Place::Kind::nowhere;
}

std::byte* Direct::mapped(int peer, const Place& place) const {
  if (place.kind != Place::Kind::region) return nullptr;
  return channel_.regions().at(peer, {place.region, place.at});
}

const std::byte* Direct::fetch(int peer, const Place& from, std::size_t at, std::size_t bytes, std::byte* room) {
  if (const std::byte* data = mapped(peer, from)) return data + at;
  pull(peer, room, from, at, bytes);
  return room;
}

void Direct::pull(int peer, std::byte* to, const Place& from, std::size_t at, std::size_t bytes) {
  if (const std::byte* data = mapped(peer, from)) return copy_shared(to, data + at, bytes);
  if (!channel_.reach().read(peer, to, from.at + at, bytes)) lose(peer);
}

// A process loses its memory a moment before it is seen to have ended. One that lives on has no
// memory there any more.
void Direct::lose(int peer) {
  const double patience = std::min(channel_.deadline(), now() + 1.0);
  while (true) {
    if (const auto failure = channel_.gone({peer})) channel_.fail(*failure);
    channel_.check_wait();
    if (now() > patience) channel_.abort();
    const timespec moment{0, 1'000'000};
    nanosleep(&moment, nullptr);
  }
}

}  // namespace torsh::in_node
