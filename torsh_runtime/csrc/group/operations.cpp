#include "group/operations.hpp"

#include "group/group.hpp"

namespace torsh {
namespace {

// A reduction of all ranks' values at once, for a group within one node.
Reduction complete(const across::ReduceSpec& spec, int ranks) {
  const std::size_t count = static_cast<std::size_t>(ranks);
  return Reduction(spec.type, spec.op, count, spec.op == ReduceOp::avg ? count : 0, spec.factor);
}

}  // namespace

void AllReduce::operator()(Group& group) const {
  if (!group.in_node()) return across::all_reduce(group.team(), spec, data, count);
  in_node::all_reduce(group.channel(), complete(spec, group.ranks()), data, count);
}

void Reduce::operator()(Group& group) const {
  if (!group.in_node()) return across::reduce(group.team(), spec, data, count, root);
  in_node::reduce(group.channel(), complete(spec, group.ranks()), data, count, root);
}

void Broadcast::operator()(Group& group) const {
  if (!group.in_node()) return across::broadcast(group.team(), data, root);
  in_node::broadcast(group.channel(), data, root);
}

void AllGather::operator()(Group& group) const {
  PerRank<Piece> room(group.ranks());
  const Pieces pieces = outputs.cut(room, group.ranks());
  if (!group.in_node()) return across::all_gather(group.team(), pieces, input);
  in_node::all_gather(group.channel(), pieces, input);
}

void Gather::operator()(Group& group) const {
  PerRank<Piece> room(group.ranks());
  const Pieces pieces = outputs.cut(room, group.ranks());
  if (!group.in_node()) return across::gather(group.team(), pieces, input, root);
  in_node::gather(group.channel(), pieces, input, root);
}

void Scatter::operator()(Group& group) const {
  PerRank<Piece> room(group.ranks());
  const Pieces pieces = inputs.cut(room, group.ranks());
  if (!group.in_node()) return across::scatter(group.team(), output, pieces, root);
  in_node::scatter(group.channel(), output, pieces, root);
}

void ReduceScatter::operator()(Group& group) const {
  PerRank<Piece> room(group.ranks());
  const Pieces pieces = inputs.cut(room, group.ranks());
  if (!group.in_node()) return across::reduce_scatter(group.team(), spec, output, pieces);
  in_node::reduce_scatter(group.channel(), complete(spec, group.ranks()), output, pieces);
}

void AllToAll::operator()(Group& group) const {
  PerRank<Piece> to(group.ranks()), from(group.ranks());
  const Pieces targets = outputs.cut(to, group.ranks()), sources = inputs.cut(from, group.ranks());
  if (!group.in_node()) return across::all_to_all(group.team(), targets, sources);
  in_node::all_to_all(group.channel(), targets, sources);
}

void Barrier::operator()(Group& group) const {
  if (!group.in_node()) return across::barrier(group.team());
  in_node::barrier(group.channel());
}

}  // namespace torsh
