#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/steps.hpp"

namespace torsh::in_node {
namespace {

bool reaches_all(shm::Channel& channel) {
  const shm::Reach::Probe own = channel.reach().probe();
  channel.round(&own, sizeof own);
  bool reached = true;
  for_peers(channel, [&](int peer) {
    shm::Reach::Probe probe;
    std::memcpy(&probe, channel.payload(peer), sizeof probe);
    reached = reached && channel.reach().finds(peer, probe);
  });
  return reached;
}

}  // namespace

void meet(shm::Channel& channel) {
  bool reached = reaches_all(channel);
  channel.settle();
  channel.round(&reached, sizeof reached);
  for_peers(channel, [&](int peer) { reached = reached && *channel.payload(peer) != std::byte{0}; });
  channel.reach().allow(reached);
}

}  // namespace torsh::in_node
