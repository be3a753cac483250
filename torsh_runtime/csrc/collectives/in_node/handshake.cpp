#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/steps.hpp"
#include "transport/shm/tracer.hpp"

namespace torsh::in_node {
namespace {

// What a rank offers its peers: a probe of its memory, and its shared heap.
struct Capabilities {
  shm::CrossMemory::Probe probe;
  std::uint64_t heap;  // 0 is none
};

// Whether all ranks of the group have the same heap.
bool is_everyones(shm::Channel& channel, const Capabilities& own) {
  bool same = own.heap != 0;
  for_peers(channel, [&](int peer) {
    Capabilities peers;
    std::memcpy(&peers, channel.payload(peer), sizeof peers);
    same = same && peers.heap == own.heap;
  });
  return same;
}

// Whether this rank can read all peers' memory, after a round in which all posted their probes.
bool reads_all(shm::Channel& channel) {
  bool reached = true;
  for_peers(channel, [&](int peer) {
    Capabilities peers;
    std::memcpy(&peers, channel.payload(peer), sizeof peers);
    reached = reached && channel.cross_memory().can_read(peer, peers.probe);
  });
  return reached;
}

bool holds_for_all(shm::Channel& channel, bool own) {
  channel.round(&own, sizeof own);
  for_peers(channel, [&](int peer) { own = own && *channel.payload(peer) != std::byte{0}; });
  return own;
}

// The second attempt is made only if the first fails, so that access is widened only where it must be.
bool find_cross_memory(shm::Channel& channel, const Capabilities& own) {
  if (holds_for_all(channel, reads_all(channel))) return true;
  shm::admit_siblings();
  channel.round(&own, sizeof own);
  return holds_for_all(channel, reads_all(channel));
}

}  // namespace

void handshake(shm::Channel& channel, std::optional<bool> known_cross_memory) {
  const std::shared_ptr<shm::SharedHeap> heap = shm::SharedHeap::current();
  std::vector<std::byte*> bases;
  if (heap) bases = heap->bases(channel.cross_memory().pids());
  const Capabilities own{channel.cross_memory().probe(), bases.empty() ? 0 : heap->number()};
  channel.round(&own, sizeof own);
  if (is_everyones(channel, own)) channel.regions().add(heap, std::move(bases));
  channel.settle();
  channel.cross_memory().allow(known_cross_memory ? *known_cross_memory : find_cross_memory(channel, own));
}

}  // namespace torsh::in_node
