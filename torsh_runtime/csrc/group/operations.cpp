#include "group/operations.hpp"

#include <cstring>

#include "common/copy.hpp"
#include "common/prefetch.hpp"
#include "group/group.hpp"

namespace torsh {
namespace {

using across::ReduceSpec;

// A reduction of all ranks' values at once, for a group within one node.
Reduction complete(const ReduceSpec& spec, int ranks) {
  const std::size_t count = static_cast<std::size_t>(ranks);
  return Reduction(spec.type, spec.op, count, spec.op == ReduceOp::avg ? count : 0);
}

// target = source times this rank's own factor, after which a premul_sum is a sum.
void multiply(const ReduceSpec& spec, std::byte* target, const std::byte* source, std::size_t bytes) {
  const Reduction scale(spec.type, spec.op, 1, 0, spec.factor);
  scale({&target, 1}, &source, bytes / scale.element());
}

bool needs_factor(const ReduceSpec& spec) { return spec.op == ReduceOp::premul_sum; }

ReduceSpec without_factor(const ReduceSpec& spec) { return {spec.type, ReduceOp::sum}; }

}  // namespace

void AllReduce::operator()(Group& group) const {
  if (!group.in_node()) return across::all_reduce(group.team(), spec, data, count);
  if (!needs_factor(spec)) return in_node::all_reduce(group.channel(), complete(spec, group.ranks()), data, count);
  multiply(spec, data, data, count * size_of(spec.type));
  in_node::all_reduce(group.channel(), complete(without_factor(spec), group.ranks()), data, count);
}

void AllReduceCoalesced::operator()(Group& group) const {
  std::size_t bytes = 0;
  for (const Piece& array : arrays) bytes += array.bytes;
  const Scratch::Loan packed = group.scratch().take(bytes);
  std::byte* at = packed.data();
  for (const Piece& array : arrays) {
    copy_bytes(at, array.data, array.bytes);
    at += array.bytes;
  }
  AllReduce{spec, packed.data(), bytes / size_of(spec.type)}(group);
  at = packed.data();
  for (const Piece& array : arrays) {
    copy_bytes(array.data, at, array.bytes);
    at += array.bytes;
  }
}

void Reduce::operator()(Group& group) const {
  if (!group.in_node()) return across::reduce(group.team(), spec, data, count, root);
  if (!needs_factor(spec)) return in_node::reduce(group.channel(), complete(spec, group.ranks()), data, count, root);
  const std::size_t bytes = count * size_of(spec.type);
  const Scratch::Loan copy = group.scratch().take(bytes);
  multiply(spec, copy.data(), data, bytes);
  in_node::reduce(group.channel(), complete(without_factor(spec), group.ranks()), copy.data(), count, root);
  if (group.rank() == root) copy_bytes(data, copy.data(), bytes);
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
  if (!needs_factor(spec)) {
    return in_node::reduce_scatter(group.channel(), complete(spec, group.ranks()), output, pieces);
  }
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += (piece.bytes + cache_line - 1) / cache_line * cache_line;
  const Scratch::Loan copy = group.scratch().take(bytes);
  std::vector<Piece> multiplied;
  std::byte* at = copy.data();
  for (const Piece& piece : pieces) {
    multiply(spec, at, piece.data, piece.bytes);
    multiplied.push_back({at, piece.bytes});
    at += (piece.bytes + cache_line - 1) / cache_line * cache_line;
  }
  in_node::reduce_scatter(group.channel(), complete(without_factor(spec), group.ranks()), output, multiplied);
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
