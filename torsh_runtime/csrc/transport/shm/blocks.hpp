// Who has which part of a range of memory: bookkeeping in offsets, in whole pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace torsh::shm {

struct Block {
  std::size_t bytes;
  int lent = 0;             // operations under way in which peers use it
  bool is_private = false;  // peers do not see it any more
  bool is_tainted = false;  // others may still use its part of the file, even when it is gone
  bool is_pinned = false;   // and need what is there
  bool is_spoilt = false;   // an operation on it has failed: it is to become private
  bool is_absent = false;   // of a fork, which has not got it
};

class Blocks {
 public:
  using Entry = std::pair<const std::size_t, Block>;

  // `kept`: so many bytes that were given back stay present, for the next block.
  Blocks(std::size_t bytes, std::size_t kept) : kept_(kept) { free_[0] = {bytes, 0}; }

  // What has been given out, by offset.
  std::map<std::size_t, Block>& given() { return given_; }
  // The block that these bytes lie in; null if they do not lie in one.
  Entry* around(std::size_t offset, std::size_t bytes);

  struct Taken {
    std::size_t offset;
    bool is_zero;  // as it has not been used since it was last dropped
  };
  // A new block, of zeros if it must be. None if there is no room.
  std::optional<Taken> take(std::size_t bytes, bool zero);

  struct Range {
    std::size_t offset, bytes;
  };
  // Ends a block. Its memory is present or all zeros.
  void give_back(std::size_t offset, bool present);
  // Ends a block whose part is never to be given out again.
  void forget(std::size_t offset) { given_.erase(offset); }
  // What is kept beyond the limit and has been given back the longest ago, now taken for zeros.
  std::optional<Range> next_to_drop();
  void keep(std::size_t bytes) { kept_ = bytes; }

 private:
  struct Free {
    std::size_t bytes;
    std::uint64_t turn;  // in which it was given back; 0 if it is not present
  };
  using Frees = std::map<std::size_t, Free>;

  void insert(std::size_t offset, std::size_t bytes, std::uint64_t turn);
  Frees::iterator best(std::size_t bytes, bool present);

  std::size_t kept_, present_ = 0;
  std::uint64_t turn_ = 0;
  std::map<std::size_t, Block> given_;
  Frees free_;
};

}  // namespace torsh::shm
