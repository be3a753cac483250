#include "rpc/connection.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "common/clock.hpp"
#include "common/pages.hpp"
#include "transport/shm/cross_memory.hpp"

namespace torsh::rpc {
namespace {

constexpr std::size_t ahead_bytes = 32 << 10;
// Buffers of a frame that are smaller share a block; a larger one lives as long as it is needed itself.
constexpr std::size_t own_block = 64 << 10;
constexpr std::size_t alignment = 64;
// Bytes that are moved before other connections have their turn.
constexpr std::size_t turn_bytes = 2 << 20;

}  // namespace

Connection::Connection(std::uint64_t id, std::unique_ptr<Stream> stream, int pid, const Keys& keys, std::shared_ptr<Blocks> blocks)
    : id_(id), pid_(pid), keys_(keys), stream_(std::move(stream)), blocks_(std::move(blocks)), ahead_(ahead_bytes) {
  message_ = std::make_shared<Message>();
  expect(std::as_writable_bytes(std::span(&message_->header, 1)));
}

void Connection::send(OutgoingMessagePtr outgoing) {
  if (outgoing->kind <= Kind::error) outgoing->authenticate(keys_.own, next_out_++);
  out_.push_back({std::move(outgoing)});
}

void Connection::push(std::vector<OutgoingMessagePtr>& written) {
  std::size_t begun = out_.size();
  while (begun-- != 0) {
    if (!push(out_.front())) return;
    written.push_back(std::move(out_.front().outgoing));
    out_.pop_front();
  }
}

// Whether all of it is written.
bool Connection::push(Cursor& front) {
  const OutgoingMessage& outgoing = *front.outgoing;
  const auto piece = [&outgoing](std::size_t number) {
    if (number == 0) return std::span<const std::byte>(outgoing.head);
    return number <= outgoing.pieces.size() ? outgoing.pieces[number - 1] : std::span<const std::byte>();
  };
  for (std::size_t total = 0; total < turn_bytes;) {
    const auto first = piece(front.piece).subspan(front.at), second = piece(front.piece + 1);
    if (first.empty() && second.empty()) return true;
    const std::size_t taken = stream_->write(first, second);
    if (taken == 0) return false;
    total += taken;
    front.at += taken;
    while (front.piece <= outgoing.pieces.size() && front.at >= piece(front.piece).size()) front.at -= piece(front.piece++).size();
  }
  return front.piece > outgoing.pieces.size();
}

MessagePtr Connection::pull() {
  for (std::size_t total = 0; total < turn_bytes;) {
    while (!room_.empty()) {
      const std::size_t come = fill(room_);
      if (come == 0) return nullptr;
      room_ = room_.subspan(come);
      total += come;
    }
    if (MessagePtr whole = advance()) return whole;
  }
  return nullptr;
}

std::size_t Connection::fill(std::span<std::byte> room) {
  if (ahead_from_ == ahead_to_) {
    if (room.size() >= ahead_.size()) {
      was_full_ = true;
      return stream_->read(room.first(std::min(room.size(), turn_bytes)));
    }
    ahead_from_ = 0;
    ahead_to_ = stream_->read(ahead_);
    was_full_ = ahead_to_ == ahead_.size();
  }
  const std::size_t bytes = std::min(room.size(), ahead_to_ - ahead_from_);
  std::memcpy(room.data(), ahead_.data() + ahead_from_, bytes);
  ahead_from_ += bytes;
  return bytes;
}

// What follows when there is no more room to fill.
MessagePtr Connection::advance() {
  const FrameHeader& header = message_->header;
  switch (stage_) {
    case Stage::header:
      if (!header.is_valid()) throw StreamEnded("it has sent what is no call of this library");
      if (header.has_pickle() && header.number != next_in_++) throw StreamEnded("it has sent a call out of turn, or a second time");
      message_->table.resize(header.buffers);
      expect(std::as_writable_bytes(std::span(message_->table)));
      stage_ = Stage::table;
      return nullptr;
    case Stage::table:
      try {
        make_room();
      } catch (const std::bad_alloc&) {
        throw StreamEnded("it has sent more than there is memory for");
      }
      stage_ = Stage::contents;
      return nullptr;
    case Stage::contents:
      if (rooms_.empty()) return finished();
      expect(rooms_.back());
      rooms_.pop_back();
      return nullptr;
  }
  return nullptr;
}

void Connection::make_room() {
  Message& message = *message_;
  std::size_t shared = round_up(message.header.bytes, alignment);
  for (const TableEntry& entry : message.table) {
    if (entry.bytes > FrameHeader::max_bytes) throw StreamEnded("it has sent what is no call of this library");
    if (entry.address != 0 && pid_ == 0) throw StreamEnded("it has named memory that this process cannot read");
    if (entry.bytes < own_block) shared += round_up(entry.bytes, alignment);
  }
  const BlockPtr block = shared != 0 ? blocks_->take(shared) : nullptr;
  message.pickle = {block, 0, message.header.bytes};
  std::size_t at = round_up(message.header.bytes, alignment);
  for (const TableEntry& entry : message.table) {
    if (entry.bytes >= own_block) {
      message.buffers.push_back({blocks_->take(entry.bytes), 0, entry.bytes});
    } else {
      message.buffers.push_back({block, at, entry.bytes});
      at += round_up(entry.bytes, alignment);
    }
  }
  for (std::size_t i = message.table.size(); i-- != 0;) {
    if (message.table[i].address == 0 && message.table[i].bytes != 0) rooms_.push_back({message.buffers[i].data(), message.buffers[i].bytes});
  }
  if (message.header.bytes != 0) rooms_.push_back({message.pickle.data(), message.pickle.bytes});
}

MessagePtr Connection::finished() {
  MessagePtr whole = std::move(message_);
  whole->connection = id_;
  whole->came = now();
  whole->key = keys_.peer;
  message_ = std::make_shared<Message>();
  expect(std::as_writable_bytes(std::span(&message_->header, 1)));
  stage_ = Stage::header;
  return whole;
}

void Connection::fetch(int pid, Message& message) {
  for (std::size_t i = 0; i < message.table.size(); ++i) {
    const TableEntry& entry = message.table[i];
    if (entry.address == 0 || entry.bytes == 0) continue;
    if (shm::read_memory(pid, message.buffers[i].data(), entry.address, entry.bytes)) continue;
    throw StreamEnded(errno == ESRCH ? "its process has ended" : "its memory cannot be read any more");
  }
}

bool Connection::is_hung_up() const {
  pollfd watched{descriptor(), POLLRDHUP, 0};
  return ::poll(&watched, 1, 0) > 0;
}

std::vector<OutgoingMessagePtr> Connection::abandon() {
  std::vector<OutgoingMessagePtr> left;
  for (Cursor& each : out_) left.push_back(std::move(each.outgoing));
  out_.clear();
  return left;
}

}  // namespace torsh::rpc
