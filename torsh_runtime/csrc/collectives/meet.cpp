#include "collectives/in_node.hpp"
#include "collectives/steps.hpp"

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
  struct Finding {
    bool roomy, reached;
  };
  Finding all{channel.is_roomy(), reaches_all(channel)};
  channel.round(&all, sizeof all);
  for_peers(channel, [&](int peer) {
    Finding found;
    std::memcpy(&found, channel.payload(peer), sizeof found);
    all = {all.roomy && found.roomy, all.reached && found.reached};
  });
  channel.settle(all.roomy);
  channel.reach().allow(all.reached);
}

}  // namespace torsh::in_node
