// Frames that are sent and received over a connection of remote calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rpc/blocks.hpp"
#include "rpc/frame.hpp"

namespace torsh::rpc {

// A frame to be sent.
struct OutgoingMessage {
  std::vector<std::byte> head;                     // header, table, and what is small enough to be copied
  std::vector<std::span<const std::byte>> pieces;  // what follows
  std::shared_ptr<void> keep;  // owner of the memory; released with the GIL held
  std::size_t bytes = 0;                           // of all, with what the peer reads itself
  std::uint64_t call = 0;
  Kind kind{};
  SipTag tag{};          // of the pickle
  std::size_t buffers = 0;
  bool is_lent = false;  // the peer reads some of it from this process's memory

  // Sets its number and its MAC, when its turn has come.
  void authenticate(const SipKey& key, std::uint64_t number);
};
using OutgoingMessagePtr = std::shared_ptr<OutgoingMessage>;

// Bytes within a block.
struct Part {
  BlockPtr block;  // null: no bytes
  std::size_t offset = 0, bytes = 0;

  std::byte* data() const { return block.get() + offset; }
};

// A frame that has come.
struct Message {
  std::uint64_t connection = 0;
  FrameHeader header;
  double came = 0;  // as of now()
  Part pickle;
  std::vector<Part> buffers;
  std::vector<TableEntry> table;
  SipKey key{};  // key of its MAC

  // Whether its MAC is right.
  bool is_genuine() const;
  // Whether its sender is told when it is begun.
  bool is_large() const;
};
using MessagePtr = std::shared_ptr<Message>;

// Puts frames together. A buffer of `lend_limit` bytes or more is left where it is if the peer can
// read this process's memory; smaller ones are copied at once up to `copy_limit`.
class Packing {
 public:
  static constexpr std::size_t lend_limit = 64 << 10;
  static constexpr std::size_t copy_limit = 4 << 10;

  static OutgoingMessagePtr pack(FrameHeader header, std::span<const std::byte> pickle, std::span<const std::span<const std::byte>> buffers,
                        bool may_lend, const SipKey& key, std::shared_ptr<void> keep);
};

}  // namespace torsh::rpc
