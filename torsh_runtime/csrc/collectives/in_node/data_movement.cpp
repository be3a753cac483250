#include "collectives/in_node/direct.hpp"
#include "collectives/in_node/exchange.hpp"
#include "collectives/in_node/exposure.hpp"
#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/limits.hpp"
#include "collectives/in_node/steps.hpp"
#include "common/pages.hpp"
#include "common/streaming.hpp"

namespace torsh::in_node {
namespace {

void tiny_broadcast(shm::Channel& channel, Piece data, int root) {
  if (channel.rank() == root) return channel.notify_all(data.data, data.bytes);
  channel.await_root(root);
  copy_bytes(data.data, channel.payload(root), data.bytes);
}

// Blocks are so small that the root fills the next one while the others read the last. They are larger where ranks
// share CPUs, since each costs a turn of all. Smaller data are stored behind the last broadcast's while the slot has
// room, so that the root may be some operations ahead.
void staged_broadcast(shm::Channel& channel, Piece data, int root) {
  const std::size_t most = channel.tuning().block_bytes;
  const std::size_t limit = channel.has_cpu_per_rank() ? std::min(most, broadcast_block) : most;
  const bool streams = data.bytes * static_cast<std::size_t>(channel.ranks()) >= stream_limit;
  for_blocks(data.bytes, limit, [&](std::size_t at, std::size_t length) {
    channel.next_part(length, data.bytes <= limit ? most : limit);
    if (channel.rank() == root) {
      copy_shared(channel.own_slot(length), data.data + at, length);
      channel.notify_all();
    } else {
      channel.await_root(root);
      count_lines(length);
      (streams ? copy_streaming : copy_shared)(data.data + at, channel.slot(root), length);
    }
  });
}

// The root writes so much to each rank that all copy the same amount.
bool direct_broadcast(shm::Channel& channel, Piece data, int root) {
  const std::size_t ranks = static_cast<std::size_t>(channel.ranks());
  Direct direct(channel, data.bytes * (ranks - 1), limits(channel).cross_memory, limits(channel).array);
  const Exposed exposed(channel);
  if (!direct.exchange_places(data, data.bytes)) return false;
  const std::size_t given = data.bytes / ranks / least_page * least_page;
  if (channel.rank() == root) {
    for_peers(channel, [&](int peer) { direct.push(peer, direct.of(peer), 0, data.data, given); });
  } else {
    direct.pull(root, data.data + given, direct.of(root), given, data.bytes - given);
  }
  channel.close_round();  // from here on all ranks may change the data
  return true;
}

void tiny_all_gather(shm::Channel& channel, Pieces outputs, Piece input) {
  channel.round(input.data, input.bytes);
  copy_own(of(outputs, channel.rank()).data, input.data, input.bytes);
  for_peers(channel, [&](int peer) {
    copy_bytes(of(outputs, peer).data, channel.payload(peer), of(outputs, peer).bytes);
  });
}

void staged_all_gather(shm::Channel& channel, Pieces outputs, Piece input) {
  const std::size_t limit = channel.tuning().block_bytes;
  for_blocks(longest(outputs), limit, [&](std::size_t at, std::size_t) {
    channel.next_block();
    const std::size_t length = within(input.bytes, at, limit);
    copy_shared(channel.own_slot(length), input.data + at, length);
    copy_own(of(outputs, channel.rank()).data + at, input.data + at, length);
    channel.barrier();
    for_peers(channel, [&](int peer) {
      const Piece& output = of(outputs, peer);
      copy_fetched(output.data + at, channel.slot(peer), within(output.bytes, at, limit));
    });
  });
}

// One piece for the given rank, and empty pieces for the others.
class OnePiece {
 public:
  OnePiece(int ranks, int rank, Piece piece) : pieces_(ranks), count_(static_cast<std::size_t>(ranks)) {
    std::fill_n(pieces_.data(), count_, Piece{});
    pieces_[rank] = piece;
  }
  Pieces all() { return {pieces_.data(), count_}; }

 private:
  PerRank<Piece> pieces_;
  std::size_t count_;
};

bool direct_all_gather(shm::Channel& channel, Pieces outputs, Piece input) {
  // Smaller inputs are mostly not in mapped memory, and asking costs a round.
  const std::size_t array = std::max(limits(channel).array, shm::least_array);
  Direct direct(channel, total(outputs) * outputs.size(), limits(channel).cross_memory, array);
  if (!direct.exchange_places(input, longest(outputs))) return false;
  for_peers(channel, [&](int peer) {
    const Piece& output = of(outputs, peer);
    direct.pull(peer, output.data, direct.of(peer), 0, output.bytes);
  });
  direct.copy(of(outputs, channel.rank()).data, input.data, input.bytes);
  channel.close_round();  // from here on the peers may change their inputs
  return true;
}

}  // namespace

void barrier(shm::Channel& channel) { channel.barrier(); }

void broadcast(shm::Channel& channel, Piece data, int root) {
  if (data.bytes <= shm::tiny_bytes) return tiny_broadcast(channel, data, root);
  if (data.bytes < limits(channel).unsynchronised_broadcast) return staged_broadcast(channel, data, root);
  if (!direct_broadcast(channel, data, root)) staged_broadcast(channel, data, root);
}

void all_gather(shm::Channel& channel, Pieces outputs, Piece input) {
  if (longest(outputs) <= shm::tiny_bytes) return tiny_all_gather(channel, outputs, input);
  if (!direct_all_gather(channel, outputs, input)) staged_all_gather(channel, outputs, input);
}

void gather(shm::Channel& channel, Pieces outputs, Piece input, int root) {
  OnePiece given(channel.ranks(), root, input), none(channel.ranks(), root, {});
  exchange(channel, channel.rank() == root ? outputs : none.all(), given.all(), 1);
}

void scatter(shm::Channel& channel, Piece output, Pieces inputs, int root) {
  OnePiece taken(channel.ranks(), root, output), none(channel.ranks(), root, {});
  exchange(channel, taken.all(), channel.rank() == root ? inputs : none.all(), channel.ranks() - 1);
}

void all_to_all(shm::Channel& channel, Pieces outputs, Pieces inputs) {
  exchange(channel, outputs, inputs, channel.ranks());
}

}  // namespace torsh::in_node
