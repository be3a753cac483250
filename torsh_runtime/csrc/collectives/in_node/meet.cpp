#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/steps.hpp"
#include "transport/shm/tracer.hpp"

namespace torsh::in_node {
namespace {

// What a rank has for its peers to get at.
struct Card {
  shm::Reach::Probe probe;
  std::uint64_t arena;  // 0 is none
};

// Whether the others have the same arena, which has a part for each rank of the group, too.
bool is_everyones(shm::Channel& channel, const Card& own) {
  bool same = own.arena != 0;
  for_peers(channel, [&](int peer) {
    Card card;
    std::memcpy(&card, channel.payload(peer), sizeof card);
    same = same && card.arena == own.arena;
  });
  return same;
}

// After a round in which all have shown their cards.
bool reaches_all(shm::Channel& channel) {
  bool reached = true;
  for_peers(channel, [&](int peer) {
    Card card;
    std::memcpy(&card, channel.payload(peer), sizeof card);
    reached = reached && channel.reach().finds(peer, card.probe);
  });
  return reached;
}

bool holds_for_all(shm::Channel& channel, bool own) {
  channel.round(&own, sizeof own);
  for_peers(channel, [&](int peer) { own = own && *channel.payload(peer) != std::byte{0}; });
  return own;
}

// The second attempt is made only where the first one fails, so nothing is opened that need not be.
bool find_reach(shm::Channel& channel, const Card& own) {
  if (holds_for_all(channel, reaches_all(channel))) return true;
  shm::admit_siblings();
  channel.round(&own, sizeof own);
  return holds_for_all(channel, reaches_all(channel));
}

}  // namespace

void meet(shm::Channel& channel, std::optional<bool> known_reach) {
  const std::shared_ptr<shm::Arena> arena = shm::Arena::current();
  std::vector<std::byte*> bases;
  if (arena) bases = arena->bases(channel.reach().pids());
  const Card own{channel.reach().probe(), bases.empty() ? 0 : arena->number()};
  channel.round(&own, sizeof own);
  if (is_everyones(channel, own)) channel.regions().add(arena, std::move(bases));
  channel.settle();
  channel.reach().allow(known_reach ? *known_reach : find_reach(channel, own));
}

}  // namespace torsh::in_node
