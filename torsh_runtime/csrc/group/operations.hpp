// Each collective as a value: its arguments, and how it runs on a Group. So it can run now, or later on another
// thread. The buffers must stay until it is over.
#pragma once

#include <utility>
#include <vector>

#include "collectives/across/across.hpp"
#include "common/per_rank.hpp"

namespace torsh {

class Group;

// One array to be cut into equal parts, or an array for each rank.
class Parts {
 public:
  explicit Parts(Piece whole) : whole_(whole) {}
  explicit Parts(std::vector<Piece> each) : each_(std::move(each)), listed_(true) {}

  // The pieces; those of a whole are put into the room.
  Pieces cut(PerRank<Piece>& room, int ranks) const {
    if (listed_) return each_;
    const std::size_t bytes = whole_.bytes / static_cast<std::size_t>(ranks);
    for (int rank = 0; rank < ranks; ++rank) room[rank] = {whole_.data + bytes * static_cast<std::size_t>(rank), bytes};
    return {room.data(), static_cast<std::size_t>(ranks)};
  }

 private:
  Piece whole_{};
  std::vector<Piece> each_;
  bool listed_ = false;
};

struct AllReduce {
  across::ReduceSpec spec;
  std::byte* data;
  std::size_t count;
  void operator()(Group& group) const;
};

// Several arrays as one.
struct AllReduceCoalesced {
  across::ReduceSpec spec;
  std::vector<Piece> arrays;
  void operator()(Group& group) const;
};

struct Reduce {
  across::ReduceSpec spec;
  std::byte* data;
  std::size_t count;
  int root;
  void operator()(Group& group) const;
};

struct Broadcast {
  Piece data;
  int root;
  void operator()(Group& group) const;
};

struct AllGather {
  Parts outputs;
  Piece input;
  void operator()(Group& group) const;
};

struct Gather {
  Parts outputs;  // empty except on root
  Piece input;
  int root;
  void operator()(Group& group) const;
};

struct Scatter {
  Piece output;
  Parts inputs;  // empty except on root
  int root;
  void operator()(Group& group) const;
};

struct ReduceScatter {
  across::ReduceSpec spec;
  Piece output;
  Parts inputs;
  void operator()(Group& group) const;
};

struct AllToAll {
  Parts outputs, inputs;
  void operator()(Group& group) const;
};

struct Barrier {
  void operator()(Group& group) const;
};

}  // namespace torsh
