// One connection of remote calls: frames out of and into a stream. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rpc/message.hpp"
#include "transport/stream.hpp"

namespace torsh::rpc {

// The MAC keys of a connection.
struct Keys {
  SipKey own{}, peer{};
};

class Connection {
 public:
  // `pid`: the peer's process, if its memory can be read; else 0.
  Connection(std::uint64_t id, std::unique_ptr<Stream> stream, int pid, const Keys& keys, std::shared_ptr<Blocks> blocks);

  std::uint64_t id() const { return id_; }
  int pid() const { return pid_; }
  int descriptor() const { return stream_->descriptor(); }

  const Keys& keys() const { return keys_; }
  void send(OutgoingMessagePtr outgoing);
  // Writes what is possible now, and returns the messages that are written. Throws StreamEnded.
  void push(std::vector<OutgoingMessagePtr>& written);
  bool is_sending() const { return !out_.empty(); }
  bool is_through() const { return out_.empty() && stream_->is_through(); }
  // Returns the next frame after all of its bytes in the stream have come; null before. Buffers in the peer's memory
  // are for fetch(). Throws StreamEnded.
  MessagePtr pull();
  // Reads those buffers from the peer's process, without any lock. Throws StreamEnded.
  static void fetch(int pid, Message& message);
  // Whether the peer has ended the connection; memory that it lent may be gone.
  bool is_hung_up() const;

  // Whether there may be more to pull() now, because the last read was full.
  bool may_have_more() const { return ahead_from_ != ahead_to_ || was_full_; }

  // Returns all unwritten messages; the connection cannot be used any more.
  std::vector<OutgoingMessagePtr> abandon();

 private:
  struct Cursor {
    OutgoingMessagePtr outgoing;
    std::size_t piece = 0, at = 0;  // 0 is the head
  };
  enum class Stage { header, table, contents };

  bool push(Cursor& front);
  std::size_t fill(std::span<std::byte> room);
  void expect(std::span<std::byte> room) { room_ = room; }
  MessagePtr advance();
  void make_room();
  MessagePtr finished();

  const std::uint64_t id_;
  const int pid_;
  const Keys keys_;
  std::unique_ptr<Stream> stream_;
  const std::shared_ptr<Blocks> blocks_;
  std::deque<Cursor> out_;
  Stage stage_ = Stage::header;
  MessagePtr message_;
  std::span<std::byte> room_;  // to fill next
  std::vector<std::span<std::byte>> rooms_;  // to fill after that, in reverse order
  std::vector<std::byte> ahead_;  // bytes read ahead, so that a small frame takes one read
  std::size_t ahead_from_ = 0, ahead_to_ = 0;
  bool was_full_ = false;
  std::uint64_t next_out_ = 0, next_in_ = 0;  // numbers of the next frames with a pickle
};

}  // namespace torsh::rpc
