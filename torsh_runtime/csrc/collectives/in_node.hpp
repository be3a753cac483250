// Collectives between the ranks of one node, over a shm::Channel. Buffers are contiguous; counts
// are in elements. All may throw Failure or Interrupted; the buffers are undefined then.
#pragma once

#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// `call` describes what the user asked for; `timeout` is in seconds.
void all_reduce(shm::Channel& channel, const Call& call, std::byte* data, double timeout);
void broadcast(shm::Channel& channel, const Call& call, std::byte* data, double timeout);
// Every rank gives call.count elements, which may be its part of the output; `output` holds ranks() times as many, in order of rank.
void all_gather(shm::Channel& channel, const Call& call, std::byte* output, const std::byte* input, double timeout);
// Every rank gives ranks() × call.count elements and gets the reduced part of its rank.
void reduce_scatter(shm::Channel& channel, const Call& call, std::byte* output, const std::byte* input, double timeout);
void barrier(shm::Channel& channel, const Call& call, double timeout);

}  // namespace torsh::in_node
