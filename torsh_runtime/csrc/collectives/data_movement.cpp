#include <algorithm>
#include <cstring>

#include "collectives/in_node.hpp"
#include "common/kernels.hpp"
#include "common/per_rank.hpp"
#include "common/prefetch.hpp"

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
  PerRank<const std::byte*> sources(channel.ranks());
  const std::size_t limit = channel.tuning().block_bytes / ranks / cache_line * cache_line;
  for_blocks(bytes, limit, [&](std::size_t at, std::size_t length) {
    channel.next_block();
    const int own = channel.rank();
    std::byte* slot = channel.slot(own);
    const auto part = [&](int rank) { return static_cast<std::size_t>(rank) * length; };
    const auto given = [&](int rank) { return input + static_cast<std::size_t>(rank) * bytes + at; };
    for (int peer = 0; peer < channel.ranks(); ++peer) {
      if (peer != own) copy_shared(slot + part(peer), given(peer), length);
    }
    channel.round();
    for (int peer = 0; peer < channel.ranks(); ++peer) {
      sources[peer] = peer == own ? given(own) : channel.slot(peer) + part(own);
    }
    std::byte* target = output + at;  // perhaps a part of the input
    reduce({&target, 1}, sources.data(), length / element);
  });
}

void barrier(shm::Channel& channel, const Call& call, double timeout) {
  const shm::Channel::Operation operation(channel, call, timeout);
  channel.round();
}

}  // namespace torsh::in_node
