#include "collectives/in_node/direct.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "collectives/in_node/exposure.hpp"
#include "collectives/in_node/limits.hpp"
#include "collectives/in_node/steps.hpp"
#include "common/clock.hpp"
#include "common/streaming.hpp"

namespace torsh::in_node {

Direct::Direct(shm::Channel& channel, std::size_t written, std::size_t cross_memory, std::size_t array)
    : channel_(channel),
      streams_(written >= stream_limit),
      detours_(written >= detour_limit),
      cross_memory_(cross_memory),
      array_(array),
      places_(channel.ranks()) {}

bool Direct::cross_memory_pays(std::size_t bytes) const {
  return channel_.cross_memory().allowed() && bytes >= cross_memory_;
}

bool Direct::regions_pay(std::size_t bytes) const {
  if (channel_.regions().has_heap() && bytes >= array_) return true;
  return !channel_.regions().empty() && bytes >= limits(channel_).region;
}

Place Direct::place(const Piece& buffer, std::size_t bytes) {
  if (regions_pay(bytes)) {
    const auto spot = channel_.regions().find(buffer.data, buffer.bytes, loans_);
    if (spot) return {Place::Kind::region, spot->offset, spot->region};
  }
  if (!cross_memory_pays(bytes) || !channel_.cross_memory().is_readable(buffer.data, buffer.bytes)) return {};
  return {Place::Kind::process, reinterpret_cast<std::uint64_t>(buffer.data), 0};
}

bool Direct::exchange_places(const Piece& own, std::size_t bytes) {
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

std::size_t Direct::piece_bytes() const { return fetched_piece(channel_.ranks()); }

const std::byte* Direct::fetch(int peer, const Place& from, std::size_t at, std::size_t bytes) {
  if (const std::byte* data = mapped(peer, from)) return data + at;
  std::byte* room = room_of(peer);
  read(peer, room, from.at + at, bytes);
  return room;
}

std::byte* Direct::room_of(int rank) {
  const auto count = static_cast<std::size_t>(channel_.ranks());
  return channel_.cross_memory().room(count * piece_bytes()).data() + static_cast<std::size_t>(rank) * piece_bytes();
}

void Direct::pull(int peer, std::byte* to, const Place& from, std::size_t at, std::size_t bytes) {
  if (const std::byte* data = mapped(peer, from)) return copy(to, data + at, bytes);
  if (!detours_) return read(peer, to, from.at + at, bytes);
  const std::span<std::byte> room = channel_.cross_memory().room(shm::CrossMemory::piece_bytes);  // the system does not bypass the caches
  for_blocks(bytes, room.size(), [&](std::size_t done, std::size_t length) {
    read(peer, room.data(), from.at + at + done, length);
    copy(to + done, room.data(), length);
  });
}

void Direct::read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes) {
  if (!channel_.cross_memory().read(peer, to, from, bytes)) lose(peer);
}

void Direct::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (to == from || bytes == 0) return;
  if (streams_) copy_streaming(to, from, bytes);
  else copy_shared(to, from, bytes);
}

void Direct::push(int peer, const Place& to, std::size_t at, const std::byte* from, std::size_t bytes) {
  if (std::byte* data = mapped(peer, to)) {
    const Writing writing(channel_);
    return copy_shared(data + at, from, bytes);
  }
  for (std::size_t done = 0; done < bytes;) {
    Writing writing(channel_, to.at + at + done, std::min(bytes - done, shm::CrossMemory::piece_bytes));
    const std::size_t written = writing.copy(peer, from + done);
    if (written == 0) lose(peer);
    done += written;
  }
}

// A process loses its memory a moment before it is seen to have ended. A process that lives on has unmapped it.
void Direct::lose(int peer) {
  const double patience = std::min(channel_.deadline(), now() + 1.0);
  while (true) {
    if (const auto failure = channel_.gone(peer)) channel_.fail(*failure);
    channel_.check_wait();
    if (now() > patience) channel_.abort();
    const timespec moment{0, 1'000'000};
    nanosleep(&moment, nullptr);
  }
}

}  // namespace torsh::in_node
