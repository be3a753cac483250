#include <algorithm>
#include <cstring>

#include "collectives/in_node.hpp"
#include "common/kernels.hpp"
#include "common/per_rank.hpp"
#include "common/prefetch.hpp"

namespace torsh::in_node {
namespace {

void tiny(shm::Channel& channel, const Reduction& reduce, const Call& call, std::byte* data, std::size_t bytes) {
  std::byte own[shm::tiny_bytes];
  std::memcpy(own, data, bytes);
  channel.round(own, bytes);
  PerRank<const std::byte*> sources(channel.ranks());
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    sources[peer] = peer == channel.rank() ? own : channel.payload(peer);
  }
  reduce({&data, 1}, sources.data(), call.count);
}

void whole(shm::Channel& channel, const Reduction& reduce, const Call& call, std::byte* data, std::size_t bytes) {
  channel.next_block();
  copy_shared(channel.slot(channel.rank()), data, bytes);
  channel.round();
  PerRank<const std::byte*> sources(channel.ranks());
  for (int peer = 0; peer < channel.ranks(); ++peer) sources[peer] = channel.slot(peer);
  reduce({&data, 1}, sources.data(), call.count);
}

// One block of a large buffer: every rank reduces its part of it. A rank's own part never leaves
// home; the foreign parts go into its slot, and each peer puts its result back where it found the
// input. So a line of the slot crosses between two processors twice, there and back, which is the
// least possible: neither has to take it from the other again in order to write it. Between the
// second round and the next first one nobody but its owner touches a slot: one does for all blocks.
class Block {
 public:
  Block(shm::Channel& channel, const Reduction& reduce, std::byte* data, std::size_t count, std::size_t element)
      : channel_(channel), reduce_(reduce), data_(data), count_(count), element_(element) {
    const std::size_t per_line = cache_line / element;
    const std::size_t lines = (count + per_line - 1) / per_line;
    const std::size_t ranks = static_cast<std::size_t>(channel.ranks());
    part_ = (lines + ranks - 1) / ranks * per_line;
  }

  void run() {
    std::byte* slot = channel_.slot(channel_.rank());
    for_foreign([&](int peer) { copy_shared(slot + offset(peer), data_ + offset(peer), bytes(peer)); });
    channel_.round();
    reduce_own();
    channel_.round();
    for_foreign([&](int peer) { copy_shared(data_ + offset(peer), slot + offset(peer), bytes(peer)); });
  }

 private:
  std::size_t first(int peer) const { return std::min(count_, part_ * static_cast<std::size_t>(peer)); }
  std::size_t offset(int peer) const { return first(peer) * element_; }
  std::size_t bytes(int peer) const { return (first(peer + 1) - first(peer)) * element_; }

  template <typename Copy>
  void for_foreign(Copy copy) {
    for (int peer = channel_.rank() + 1; peer < channel_.ranks(); ++peer) copy(peer);
    for (int peer = 0; peer < channel_.rank(); ++peer) copy(peer);
  }

  void reduce_own() {
    const int own = channel_.rank();
    std::byte* home = data_ + offset(own);
    PerRank<const std::byte*> sources(channel_.ranks());
    PerRank<std::byte*> targets(channel_.ranks());
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      sources[peer] = peer == own ? home : channel_.slot(peer) + offset(own);
      targets[(peer - own + channel_.ranks()) % channel_.ranks()] = const_cast<std::byte*>(sources[peer]);
    }
    reduce_({targets.data(), static_cast<std::size_t>(channel_.ranks())}, sources.data(), bytes(own) / element_);
  }

  shm::Channel& channel_;
  const Reduction& reduce_;
  std::byte* data_;
  std::size_t count_, element_, part_;
};

}  // namespace

void all_reduce(shm::Channel& channel, const Call& call, std::byte* data, double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  const std::size_t element = size_of(call.dtype);
  const std::size_t bytes = call.count * element;
  const Reduction reduce(call.dtype, call.op, channel.ranks());
  if (bytes <= shm::tiny_bytes) return tiny(channel, reduce, call, data, bytes);
  if (bytes <= channel.tuning().whole_limit) return whole(channel, reduce, call, data, bytes);
  channel.next_block();
  const std::size_t per_block = channel.tuning().block_bytes / element;
  for (std::size_t at = 0; at < call.count; at += per_block) {
    Block(channel, reduce, data + at * element, std::min(per_block, call.count - at), element).run();
  }
}

}  // namespace torsh::in_node
