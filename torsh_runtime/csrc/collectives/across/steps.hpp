// What the collectives between nodes share.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/across/across.hpp"
#include "common/per_rank.hpp"

namespace torsh::across {

// How many messages in each direction are under way at a time between a rank and its neighbours.
constexpr std::size_t ahead = 4;

// Ranks that exchange messages, and this rank's index among them.
struct Subgroup {
  std::vector<int> ranks;
  int own = 0;

  int size() const { return static_cast<int>(ranks.size()); }
  // The rank at an index, modulo the size.
  int rank(int place) const { return ranks[static_cast<std::size_t>((place % size() + size()) % size())]; }
};

// The group as a strategy sees it: its nodes, or every rank on a node of its own.
class View {
 public:
  explicit View(const Layout& layout) : layout_(layout) {}
  explicit View(const Team& team);
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const Layout& operator*() const { return layout_; }
  const Layout* operator->() const { return &layout_; }
  // Whether this rank shares memory with others.
  bool shared() const { return layout_.num_local() > 1; }
  // The ranks with a given index on their nodes, one per node. This rank's index in it is that of its node, whether
  // it is a member or not.
  Subgroup column(int index) const;
  // The first rank of every node, but root itself on root's.
  Subgroup leaders(int root) const;

 private:
  std::optional<Layout> flat_;
  const Layout& layout_;
};

// The messages of one operation.
class Mail {
 public:
  explicit Mail(Team& team) : team_(team) {}

  // The bytes must stay until flush().
  void send(int peer, const Piece& data) { sent_.push_back(start_send(peer, data)); }
  TransferPtr start_send(int peer, const Piece& data) {
    tell_attendance();
    return team_.messages.send(peer, team_.label, {data.data, data.bytes});
  }
  TransferPtr receive(int peer, const Piece& room) {
    return team_.messages.receive(peer, team_.label, {room.data, room.bytes});
  }
  void wait(std::span<const TransferPtr> transfers) {
    team_.messages.wait(transfers, team_.deadline, team_.timeout);
    if (team_.local.recorded().is_under_way()) note_attendance(transfers);
  }
  void wait(const TransferPtr& transfer) { wait({&transfer, 1}); }
  // Waits until everything that was sent may be changed again.
  void flush() {
    wait(sent_);
    sent_.clear();
  }

 private:
  void tell_attendance();
  void note_attendance(std::span<const TransferPtr> transfers);
  void note_neighbours();

  Team& team_;
  std::vector<TransferPtr> sent_;
};

// One of `pieces`, by rank.
inline const Piece& of(Pieces pieces, int rank) { return pieces[static_cast<std::size_t>(rank)]; }

inline void copy(const Piece& to, const std::byte* from) {
  if (to.data != from && to.bytes != 0) std::memcpy(to.data, from, to.bytes);
}

// A buffer in pieces of at most `piece` bytes. An empty buffer has one empty piece, since ranks must take part in
// every operation.
struct Chunks {
  std::size_t bytes, piece;

  std::size_t count() const { return bytes == 0 ? 1 : (bytes + piece - 1) / piece; }
  Piece of(const Piece& whole, std::size_t at) const {
    const std::size_t from = std::min(whole.bytes, at * piece), to = std::min(whole.bytes, from + piece);
    return {whole.data + from, to - from};
  }
};

// Equal parts of an array, to a cache line; the last ones may be smaller or empty.
class Parts {
 public:
  Parts(std::byte* data, std::size_t bytes, int parts) : data_(data), bytes_(bytes) {
    const std::size_t lines = (bytes + cache_line - 1) / cache_line, all = static_cast<std::size_t>(parts);
    largest_ = (lines + all - 1) / all * cache_line;
  }
  std::size_t largest() const { return std::min(largest_, bytes_); }
  Piece operator[](int part) const {
    return Chunks{bytes_, largest_}.of({data_, bytes_}, static_cast<std::size_t>(part));
  }

 private:
  std::byte* data_;
  std::size_t bytes_, largest_;
};

// Equal pieces of borrowed memory, used in turn.
class Slots {
 public:
  Slots(Team& team, std::size_t slots, std::size_t bytes)
      : slots_(slots),
        bytes_((bytes + cache_line - 1) / cache_line * cache_line),
        memory_(team.scratch.take(slots * bytes_)) {}
  std::byte* operator[](std::size_t turn) const { return memory_.data() + turn % slots_ * bytes_; }

 private:
  std::size_t slots_, bytes_;
  Scratch::Loan memory_;
};

// Calls begin(i) and end(i, what begin(i) returned) for every i in order, begin up to `width` ahead:
// what end(i) waits for has then been under way for a while.
template <typename Begin, typename End>
void pipelined(std::size_t count, std::size_t width, Begin begin, End end) {
  std::vector<decltype(begin(std::size_t{}))> under_way(std::min(count, width));
  std::size_t begun = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (; begun < count && begun < i + width; ++begun) under_way[begun % width] = begin(begun);
    end(i, under_way[i % width]);
  }
}

// The steps of a reduction of values that have been multiplied by their factors.
struct Sum {
  DType type;
  ReduceOp op;
  std::size_t divisor;  // of the last step

  Sum(const ReduceSpec& spec, int ranks)
      : type(spec.type),
        op(spec.op == ReduceOp::premul_sum ? ReduceOp::sum : spec.op),
        divisor(spec.op == ReduceOp::avg ? static_cast<std::size_t>(ranks) : 0) {}
  Reduction part(int sources) const { return {type, op, static_cast<std::size_t>(sources), 0}; }
  Reduction last(int sources) const { return {type, op, static_cast<std::size_t>(sources), divisor}; }
};

// target = sources[0] op sources[1] …
inline void apply(const Reduction& reduce, const Piece& target, std::initializer_list<const std::byte*> sources) {
  reduce({&target.data, 1}, sources.begin(), target.bytes / reduce.element());
}

inline bool needs_factor(const ReduceSpec& spec) { return spec.op == ReduceOp::premul_sum; }

// target = source, times the rank's own factor where there is one.
inline void copy_scaled(const ReduceSpec& spec, const Piece& target, const std::byte* source) {
  if (needs_factor(spec)) return apply({spec.type, spec.op, 1, 0, spec.factor}, target, {source});
  copy(target, source);
}

// All-reduces between the ranks of a subgroup, in place.
void recursive_doubling(Team& team, const Subgroup& subgroup, const Sum& sum, const Piece& data);
void ring_all_reduce(Team& team, const Subgroup& subgroup, const Sum& sum, const Piece& data);

// A rank's parent and children in a tree, by index.
struct Tree {
  int parent = -1;
  std::vector<int> children;  // those with the smallest subtrees first
  std::size_t segment = 0;    // bytes of one message

  // The strategy's for so many bytes.
  static Tree of(const Team& team, const Subgroup& subgroup, int root, std::size_t bytes);
};

// All ranks must start them with the same pieces in the same order.
void broadcast(Team& team, const View& view, const Piece& data, int root);
void reduce(Team& team, const View& view, const ReduceSpec& spec, const Piece& data, int root);

}  // namespace torsh::across
