#include "collectives/in_node/direct.hpp"
#include "collectives/in_node/exposure.hpp"
#include "collectives/in_node/in_node.hpp"
#include "collectives/in_node/limits.hpp"
#include "collectives/in_node/steps.hpp"

namespace torsh::in_node {
namespace {

// A buffer divided into a part for each rank, in whole cache lines.
class Parts {
 public:
  Parts(std::size_t count, std::size_t element, int ranks) : count_(count), element_(element) {
    const std::size_t per_line = cache_line / element;
    const std::size_t lines = (count + per_line - 1) / per_line;
    part_ = (lines + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks) * per_line;
  }
  std::size_t offset(int rank) const { return first(rank) * element_; }
  std::size_t count(int rank) const { return first(rank + 1) - first(rank); }
  std::size_t bytes(int rank) const { return count(rank) * element_; }

 private:
  std::size_t first(int rank) const { return std::min(count_, part_ * static_cast<std::size_t>(rank)); }

  std::size_t count_, element_, part_;
};

// Reduces the buffers of all ranks, into all of them or into one rank's.
class AllReduce {
 public:
  static constexpr int everyone = -1;

  AllReduce(shm::Channel& channel, const Reduction& reduce, int root)
      : channel_(channel),
        reduce_(reduce),
        own_(channel.rank()),
        root_(root),
        receives_(root == everyone || root == own_),
        sources_(channel.ranks()),
        targets_(channel.ranks()) {}

  void run(std::byte* data, std::size_t count) {
    const std::size_t bytes = count * reduce_.element();
    if (bytes <= shm::tiny_bytes) return tiny(data, count);
    if (bytes <= limits(channel_).whole) return whole(data, count);
    if (root_ == everyone && bytes <= limits(channel_).by_single_rank) return by_single_rank(data, count);
    if (in_place(data, count)) return;
    channel_.next_block();
    for_blocks(bytes, channel_.tuning().block_bytes, [&](std::size_t at, std::size_t length) {
      block(data + at, length / reduce_.element());
    });
  }

 private:
  void tiny(std::byte* data, std::size_t count) {
    std::byte own[shm::tiny_bytes];
    copy_bytes(own, data, count * reduce_.element());
    if (!receives_) return channel_.notify(own, count * reduce_.element());
    if (root_ == everyone) channel_.round(own, count * reduce_.element());
    else channel_.collect(own, count * reduce_.element());
    for (int peer = 0; peer < channel_.ranks(); ++peer) sources_[peer] = peer == own_ ? own : channel_.payload(peer);
    reduce_({&data, 1}, sources_.data(), count);
  }

  void whole(std::byte* data, std::size_t count) {
    channel_.next_block();
    copy_shared(channel_.own_slot(count * reduce_.element()), data, count * reduce_.element());
    if (root_ == everyone) channel_.barrier();
    else if (receives_) channel_.collect();
    else return channel_.notify();
    for (int peer = 0; peer < channel_.ranks(); ++peer) sources_[peer] = channel_.slot(peer);
    for_peers(channel_, [&](int) { count_lines(count * reduce_.element()); });
    reduce_({&data, 1}, sources_.data(), count);
  }

  // Rank 0 reduces everything and the others wait only for its result: one turn of all ranks, where parts take two.
  void by_single_rank(std::byte* data, std::size_t count) {
    AllReduce(channel_, reduce_, 0).whole(data, count);
    broadcast(channel_, {data, count * reduce_.element()}, 0);
  }

  // Every rank reduces its part of a block. It reads that part from its own buffer. The other parts go into its slot,
  // and each peer writes its result back where it found the input. So a line of the slot moves between two CPUs
  // twice, there and back. That is the minimum: no CPU must fetch it again in order to write it. Between the second
  // round and the next first one only its owner uses a slot, so one slot is enough for all blocks.
  void block(std::byte* data, std::size_t count) {
    const Parts parts(count, reduce_.element(), channel_.ranks());
    std::byte* slot = channel_.own_slot(count * reduce_.element());
    for_peers(channel_, [&](int peer) {
      copy_shared(slot + parts.offset(peer), data + parts.offset(peer), parts.bytes(peer));
    });
    channel_.barrier();
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      sources_[peer] = (peer == own_ ? data : channel_.slot(peer)) + parts.offset(own_);
    }
    reduce_where_they_are(parts.count(own_));
    channel_.barrier();
    if (!receives_) return;
    for_peers(channel_, [&](int peer) {
      copy_fetched(data + parts.offset(peer), slot + parts.offset(peer), parts.bytes(peer));
    });
  }

  // Reduces the whole buffer at once, without slots, if every rank can access all other buffers.
  bool in_place(std::byte* data, std::size_t count) {
    const std::size_t bytes = count * reduce_.element();
    Direct direct(channel_, 0, limits(channel_).cross_memory, limits(channel_).array_part);
    const bool fetching_pays = bytes >= limits(channel_).fetch_array;
    const std::size_t each = bytes / static_cast<std::size_t>(channel_.ranks());
    if (!fetching_pays && !direct.regions_pay(each)) return false;
    const Exposed exposed(channel_);
    if (!direct.exchange_places({data, bytes}, each) || !(fetching_pays || direct.all_mapped())) return false;
    const Parts parts(count, reduce_.element(), channel_.ranks());
    if (direct.all_mapped()) {
      for (int peer = 0; peer < channel_.ranks(); ++peer) {
        sources_[peer] = (peer == own_ ? data : direct.mapped(peer, direct.of(peer))) + parts.offset(own_);
      }
      const Writing writing(channel_);
      reduce_where_they_are(parts.count(own_));
    } else {
      reduce_fetched(direct, data, parts);
    }
    channel_.close_round();  // from here on the buffers are their owners' again
    return true;
  }

  void reduce_where_they_are(std::size_t count) {
    for_peers(channel_, [&](int) { count_lines(count * reduce_.element()); });
    std::size_t wanted = 0;
    const auto add = [&](int rank) { targets_[static_cast<int>(wanted++)] = const_cast<std::byte*>(sources_[rank]); };
    add(root_ == everyone ? own_ : root_);
    if (root_ == everyone) for_peers(channel_, add);
    reduce_({targets_.data(), wanted}, sources_.data(), count);
  }

  // Fetches pieces of the other buffers, and writes the results while they are in the CPU's cache.
  void reduce_fetched(Direct& direct, std::byte* data, const Parts& parts) {
    for_blocks(parts.bytes(own_), direct.piece_bytes(), [&](std::size_t first, std::size_t length) {
      const std::size_t at = parts.offset(own_) + first;
      for_peers(channel_, [&](int peer) { sources_[peer] = direct.fetch(peer, direct.of(peer), at, length); });
      sources_[own_] = data + at;
      std::byte* result = receives_ ? data + at : direct.room_of(own_);
      reduce_({&result, 1}, sources_.data(), length / reduce_.element());
      const auto send = [&](int peer) { direct.push(peer, direct.of(peer), at, result, length); };
      if (root_ == everyone) for_peers(channel_, send);
      else if (!receives_) send(root_);
    });
  }

  shm::Channel& channel_;
  const Reduction& reduce_;
  const int own_, root_;
  const bool receives_;
  PerRank<const std::byte*> sources_;
  PerRank<std::byte*> targets_;
};

}  // namespace

void all_reduce(shm::Channel& channel, const Reduction& reduce, std::byte* data, std::size_t count) {
  AllReduce(channel, reduce, AllReduce::everyone).run(data, count);
}

void reduce(shm::Channel& channel, const Reduction& reduce, std::byte* data, std::size_t count, int root) {
  AllReduce(channel, reduce, root).run(data, count);
}

}  // namespace torsh::in_node
