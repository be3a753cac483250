// Collectives between the ranks of several nodes: over messages alone, or in shared memory within a
// node and over messages between them. Within a Channel::Operation that the caller holds. Ranks and
// roots are the group's; buffers as in in_node.hpp.
//
// What a strategy means for an operation. "By size" is a tree up to Limits::tree and a ring or a
// chain above it; "in nodes" is between nodes only, with shared memory before and after.
//
//                   standard   tree                 ring        hierarchical, adaptive
//   all_reduce      star       recursive doubling   ring        in nodes, by size
//   reduce          star       binomial             chain       in nodes, by size
//   broadcast       star       binomial             chain       in nodes, by size
//   all_gather      star       packed, pairwise     ring        in nodes, packed, pairwise
//   reduce_scatter  star       packed, pairwise     pairwise    in nodes, packed, pairwise
//   barrier         star       dissemination        as tree     in nodes, dissemination
//   gather, scatter, all_to_all: one algorithm each, direct, in nodes.
//
// "Packed", up to Limits::tree and for more than 4 nodes, is Bruck's algorithm or an all_reduce of
// everything. Where no node has more than one rank, "in nodes" is without shared memory.
//
// Numbers: every strategy adds in an order of its own that is always the same, so all ranks get the
// same bits, and so does the next run. Averages are sums until the last step; integers are exact.
// A sum of floats with m roundings is within m * u / (1 - m * u) times the sum of the absolute
// values of the exact one, u being 2^-24 for float32, 2^-53 for float64, 2^-11 for float16
// and 2^-8 for bfloat16 (Higham 2002, section 4.2). For n ranks m is n. For the halves, which are
// summed up in float32 within a node and rounded only between nodes, m is at most the number of
// nodes + 1 (ranks + 1 without shared memory), plus n roundings of float32. A float16 average is
// infinite where its sum is.
#pragma once

#include "collectives/across/attendance.hpp"
#include "collectives/in_node/in_node.hpp"
#include "collectives/layout.hpp"
#include "collectives/scratch.hpp"
#include "messages/messenger.hpp"

namespace torsh::across {

// Where one algorithm gives way to the next, in bytes; the same on all ranks. Multiples of 64, segment
// and block at least 4 KiB.
struct Limits {
  std::size_t leader = 8 << 10;     // all_reduce: up to here one rank speaks for its whole node
  std::size_t tree = 64 << 10;      // up to here a tree, above it rings and chains
  std::size_t segment = 512 << 10;  // what travels as one message, so that the next does meanwhile
  std::size_t block = 1 << 20;      // all_reduce: for each node and shard in what is reduced at a time
};

struct Team {
  const Layout& layout;
  shm::Channel& local;    // the ranks of this node
  Messenger& messages;    // to all ranks
  Strategy strategy;
  Limits limits;
  Label label;            // of this operation's messages
  double deadline, timeout;
  Scratch& scratch;       // the group's
  Attendance attendance;  // of this operation, if it is recorded
};

// What the user asked to be reduced, before it is cut into steps.
struct ReduceSpec {
  DType type;
  ReduceOp op;
  double factor = 1.0;
};

void all_reduce(Team& team, const ReduceSpec& spec, std::byte* data, std::size_t count);
// Only root's data are changed.
void reduce(Team& team, const ReduceSpec& spec, std::byte* data, std::size_t count, int root);
void broadcast(Team& team, Piece data, int root);
void all_gather(Team& team, Pieces outputs, Piece input);
void gather(Team& team, Pieces outputs, Piece input, int root);
void scatter(Team& team, Piece output, Pieces inputs, int root);
void reduce_scatter(Team& team, const ReduceSpec& spec, Piece output, Pieces inputs);
void all_to_all(Team& team, Pieces outputs, Pieces inputs);
void barrier(Team& team);

}  // namespace torsh::across
