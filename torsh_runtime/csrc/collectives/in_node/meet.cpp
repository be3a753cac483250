#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/steps.hpp"
#include "transport/shm/tracer.hpp"

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

bool holds_for_all(shm::Channel& channel, bool own) {
  channel.round(&own, sizeof own);
  for_peers(channel, [&](int peer) { own = own && *channel.payload(peer) != std::byte{0}; });
  return own;
}

}  // namespace

// The second attempt is made only where the first one fails, so nothing is opened that need not be.
void meet(shm::Channel& channel) {
  bool reached = reaches_all(channel);
  channel.settle();
  reached = holds_for_all(channel, reached);
  if (!reached) {
    shm::admit_siblings();
    reached = reaches_all(channel);
    reached = holds_for_all(channel, reached);
  }
  channel.reach().allow(reached);
}

}  // namespace torsh::in_node
