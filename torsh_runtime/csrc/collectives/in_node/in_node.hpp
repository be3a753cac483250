// Collectives between the ranks of one node, over a shm::Channel, within a Channel::Operation that
// the caller holds. Ranks and roots are the channel's. Buffers are contiguous and aligned. An input
// may be, exactly, this rank's part of the output or the other way round; no other overlap. All may
// throw Failure or Interrupted; the buffers are undefined then.
#pragma once

#include <optional>

#include "common/kernels.hpp"
#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// The ranks' first operation: a barrier in which they also find out whether each has a CPU and whether they can read
// each other's memory, unless that is known from another group of theirs.
void handshake(shm::Channel& channel, std::optional<bool> known_cross_memory = {});
// `reduce` has channel.ranks() sources.
void all_reduce(shm::Channel& channel, const Reduction& reduce, std::byte* data, std::size_t count);
// Only root's data are changed.
void reduce(shm::Channel& channel, const Reduction& reduce, std::byte* data, std::size_t count, int root);
void broadcast(shm::Channel& channel, Piece data, int root);
// Rank r's input goes to all ranks' outputs[r], which has its size on all ranks.
void all_gather(shm::Channel& channel, Pieces outputs, Piece input);
// Rank r's input goes to root's outputs[r]; the others give no outputs. Sizes may differ.
void gather(shm::Channel& channel, Pieces outputs, Piece input, int root);
// Root's inputs[r] goes to rank r's output; the others give no inputs. Sizes may differ.
void scatter(shm::Channel& channel, Piece output, Pieces inputs, int root);
// The reduction of all ranks' inputs[r], all of one size, goes to rank r's output.
void reduce_scatter(shm::Channel& channel, const Reduction& reduce, Piece output, Pieces inputs);
// Rank r's inputs[q] goes to rank q's outputs[r]. Each pair may have a size of its own.
void all_to_all(shm::Channel& channel, Pieces outputs, Pieces inputs);
void barrier(shm::Channel& channel);

}  // namespace torsh::in_node
