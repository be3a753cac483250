#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "collectives/in_node.hpp"
#include "common/kernels.hpp"
#include "common/prefetch.hpp"

namespace torsh::in_node {
namespace {


class Sources {
 public:
  explicit Sources(std::size_t ranks) : pointers_(ranks > few_.size() ? ranks : 0), ranks_(ranks) {}
  const std::byte** data() { return ranks_ > few_.size() ? pointers_.data() : few_.data(); }

 private:
  std::array<const std::byte*, 64> few_;
  std::vector<const std::byte*> pointers_;
  std::size_t ranks_;
};

void tiny(shm::Channel& channel, const Reduction& reduce, const Call& call, std::byte* data, std::size_t bytes) {
  std::byte own[shm::tiny_bytes];
  std::memcpy(own, data, bytes);
  channel.round(own, bytes);
  Sources sources(channel.ranks());
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    sources.data()[peer] = peer == channel.rank() ? own : channel.payload(peer);
  }
  std::byte result[shm::tiny_bytes];
  reduce(result, sources.data(), call.count);
  std::memcpy(data, result, bytes);
}

void whole(shm::Channel& channel, const Reduction& reduce, const Call& call, std::byte* data, std::size_t bytes) {
  channel.next_block();
  copy_shared(channel.slot(channel.rank()), data, bytes);
  channel.round();
  Sources sources(channel.ranks());
  for (int peer = 0; peer < channel.ranks(); ++peer) sources.data()[peer] = channel.slot(peer);
  reduce(data, sources.data(), call.count);
}

// One block of a large buffer: every rank reduces its part of it. A rank's own part never leaves
// home; only foreign parts are copied into its slot and out of the others'.
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
    channel_.next_block();
    for_foreign([this](int peer) {
      copy_shared(channel_.slot(channel_.rank()) + offset(peer), data_ + offset(peer), bytes(peer));
    });
    channel_.round();
    reduce_own();
    channel_.round();
    for_foreign([this](int peer) {
      copy_shared(data_ + offset(peer), channel_.slot(peer) + offset(peer), bytes(peer));
    });
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
    Sources sources(channel_.ranks());
    for (int peer = 0; peer < channel_.ranks(); ++peer) {
      sources.data()[peer] = peer == own ? home : channel_.slot(peer) + offset(own);
    }
    reduce_(channel_.slot(own) + offset(own), sources.data(), bytes(own) / element_, home);
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
  const std::size_t per_block = channel.tuning().block_bytes / element;
  for (std::size_t at = 0; at < call.count; at += per_block) {
    Block(channel, reduce, data + at * element, std::min(per_block, call.count - at), element).run();
  }
}

}  // namespace torsh::in_node
