#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/steps.hpp"

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

bool reaches_all(shm::Channel& channel) {
  bool reached = true;
  for_peers(channel, [&](int peer) {
    Card card;
    std::memcpy(&card, channel.payload(peer), sizeof card);
    reached = reached && channel.reach().finds(peer, card.probe);
  });
  return reached;
}

}  // namespace

void meet(shm::Channel& channel) {
  const std::shared_ptr<shm::Arena> arena = shm::Arena::current();
  std::vector<std::byte*> bases;
  if (arena) bases = arena->bases(channel.reach().pids());
  const Card own{channel.reach().probe(), bases.empty() ? 0 : arena->number()};
  channel.round(&own, sizeof own);
  if (is_everyones(channel, own)) channel.regions().add(arena, std::move(bases));
  bool reached = reaches_all(channel);
  channel.settle();
  channel.round(&reached, sizeof reached);
  for_peers(channel, [&](int peer) { reached = reached && *channel.payload(peer) != std::byte{0}; });
  channel.reach().allow(reached);
}

}  // namespace torsh::in_node
