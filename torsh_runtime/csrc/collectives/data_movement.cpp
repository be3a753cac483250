#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/in_node.hpp"
#include "common/kernels.hpp"

namespace torsh::in_node {
namespace {

// Calls body(first byte, bytes) for each block of at most `limit` bytes; once, with nothing, for
// none: ranks meet in every operation.
template <typename Body>
void for_blocks(std::size_t bytes, std::size_t limit, Body body) {
  std::size_t at = 0;
  do {
    const std::size_t length = std::min(limit, bytes - at);
    body(at, length);
    at += length;
  } while (at < bytes);
}

}  // namespace

void broadcast(shm::Channel& channel, const Call& call, std::byte* data, double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  const bool root = channel.rank() == call.root;
  for_blocks(call.count * size_of(call.dtype), channel.tuning().block_bytes, [&](std::size_t at, std::size_t length) {
    channel.next_block();
    if (root) copy_shared(channel.slot(call.root), data + at, length);
    channel.round();
    if (!root) copy_shared(data + at, channel.slot(call.root), length);
  });
}

void all_gather(shm::Channel& channel, const Call& call, std::byte* output, const std::byte* input, double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  const std::size_t bytes = call.count * size_of(call.dtype);
  const std::size_t own = bytes * static_cast<std::size_t>(channel.rank());
  for_blocks(bytes, channel.tuning().block_bytes, [&](std::size_t at, std::size_t length) {
    channel.next_block();
    copy_shared(channel.slot(channel.rank()), input + at, length);
    std::memmove(output + own + at, input + at, length);  // the input may be that part of the output
    channel.round();
    for (int step = 1; step < channel.ranks(); ++step) {
      const int peer = (channel.rank() + step) % channel.ranks();
      copy_shared(output + bytes * static_cast<std::size_t>(peer) + at, channel.slot(peer), length);
    }
  });
}

void reduce_scatter(shm::Channel& channel, const Call& call, std::byte* output, const std::byte* input,
                    double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  const std::size_t element = size_of(call.dtype);
  const std::size_t bytes = call.count * element;
  const std::size_t ranks = static_cast<std::size_t>(channel.ranks());
  const Reduction reduce(call.dtype, call.op, ranks);
  std::vector<const std::byte*> sources(ranks);
  const std::size_t limit = std::max(channel.tuning().block_bytes / ranks / 64 * 64, element);
  for_blocks(bytes, limit, [&](std::size_t at, std::size_t length) {
    channel.next_block();
    const std::size_t own = static_cast<std::size_t>(channel.rank());
    std::byte* slot = channel.slot(channel.rank());
    for (std::size_t part = 0; part < ranks; ++part) {
      if (part != own) copy_shared(slot + part * length, input + part * bytes + at, length);
    }
    channel.round();
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      sources[peer] = peer == own ? input + own * bytes + at : channel.slot(static_cast<int>(peer)) + own * length;
    }
    // By way of the slot, whose own part is free: the output may be a part of the input.
    reduce(slot + own * length, sources.data(), length / element, output + at);
  });
}

void barrier(shm::Channel& channel, const Call& call, double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  channel.round();
}

}  // namespace torsh::in_node
