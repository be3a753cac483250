// Collectives with inputs that every rank can work out, and their results computed serially.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "world.hpp"

namespace torsh::test {

// One collective. All ranks are given the same.
struct Step {
  OpKind kind{};
  DType dtype = DType::float32;
  ReduceOp op{};
  std::size_t count = 0;  // elements of a rank's array, or of one of its pieces
  int root = 0;
  bool uneven = false;    // pieces are of different sizes, `count` at most
  std::uint64_t seed = 0;

  std::string words() const;
};

// Whether ranks can be asked to do that.
bool is_possible(const Step& step);

// Memory for the buffers of a rank: what all of its node have mapped, if there is any, as long as
// there is room; else by itself, of exactly the size, so that a sanitizer sees the ends.
class Memory {
 public:
  void use(std::span<std::byte> mapped) { mapped_ = mapped; }
  std::byte* take(std::size_t bytes);
  // What was taken is free again.
  void reset();
  // The rank's operations have failed, and all of this is its own again: nobody may write here.
  void mark();
  // Throws Wrong if somebody did. Mapped memory does not count.
  void check_marks() const;

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes;
  };

  std::span<std::byte> mapped_;
  std::size_t used_ = 0;
  std::vector<Block> own_;
};

// A step of one rank, with its buffers in the memory.
class Task {
 public:
  Task(const Step& step, int rank, int ranks, Memory& memory);

  // Both throw what the group does. Of a step that was begun the result is asked for later.
  void perform(Group& group, double timeout) const { group.perform(call_, operation_, timeout); }
  void begin(Group& group, double timeout) { job_ = group.start(call_, operation_, timeout); }
  void finish(Group& group);  // what was not begun is over
  // Throws Wrong unless the result is right.
  void check() const;

 private:
  friend struct Preparation;

  struct Expected {
    Piece place;
    std::vector<std::byte> bytes;
  };

  const Step step_;
  Call call_;
  std::function<void(Group&)> operation_;
  std::vector<Expected> expected_;
  JobPtr job_;
};

}  // namespace torsh::test
