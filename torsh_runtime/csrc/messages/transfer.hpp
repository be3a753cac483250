// A message as its sender or its receiver sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/copy.hpp"
#include "common/recorder.hpp"
#include "messages/frame.hpp"

namespace torsh {

constexpr int any_source = -1;

// What waits for a user's message: its caller at once, the group's queue, or a later call.
enum class Awaited : std::uint8_t { at_once, on_queue, later };

// The purpose of a message, and what its sender or receiver is doing; they must agree.
struct Label {
  Purpose purpose{};
  std::uint64_t tag = 0;  // the user's; a collective's sequence number
  Call call{};
  bool any_tag = false;  // of a receiver, whom messages of all tags suit
  std::uint64_t seen = 0;  // of a collective's, if that is recorded: Header::seen
  bool is_recorded = false;
  Awaited awaited = Awaited::at_once;

  // Of the group's operations; 0 for a message of the user.
  std::uint64_t sequence() const { return purpose == Purpose::collective ? tag : 0; }
};

// One message being sent or received. Its buffer must stay until it is over. Created by a Messenger.
class Transfer {
 public:
  enum class Kind : std::uint8_t {
    send,
    receive,
    take,  // a receive of any size, for which memory is allocated when the message comes
    probe,  // done when there is a message for a take, which it leaves there
  };

  Transfer(int peer, const Label& label, std::span<const std::byte> data)
      : kind_(Kind::send), label_(label), data_(data), peer_(peer) {}
  Transfer(int peer, const Label& label, std::span<std::byte> room)
      : kind_(Kind::receive), label_(label), room_(room), peer_(peer) {}
  Transfer(int peer, const Label& label, Kind kind) : kind_(kind), label_(label), peer_(peer) {}

  bool done() const { return state_.load(std::memory_order_acquire) == State::done; }
  // Done or failed; Messenger::wait throws what it failed with.
  bool over() const { return state_.load(std::memory_order_acquire) != State::pending; }
  // The rank at the other end; of a receive from any source that rank once it is done.
  int peer() const { return peer_.load(std::memory_order_acquire); }
  bool sending() const { return kind_ == Kind::send; }
  bool taking() const { return kind_ == Kind::take; }
  bool probing() const { return kind_ == Kind::probe; }
  const Label& label() const { return label_; }
  // Of a receive, a take or a probe that is done: of the message that came.
  const Header& header() const { return header_; }
  // The same of a collective's, which records that: when it was known to come, in ticks.
  std::uint64_t matched_at() const { return matched_at_; }
  // Its place in the recording: 1 + its number, 0 if it has none; and among those in its direction between the two
  // ranks, from 1 on, 0 if that is not known. Any thread.
  std::uint64_t entry() const { return entry_.load(std::memory_order_relaxed); }
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  // Of a take that is done: what came, once.
  std::unique_ptr<std::byte[]> content() { return std::move(content_); }

 private:
  enum class State : std::uint8_t { pending, done, failed };
  friend class Link;
  friend class Matcher;
  friend class Engine;

  // The memory for the message. Throws std::bad_alloc.
  std::byte* room_for(std::size_t bytes) {
    if (!taking()) return room_.data();
    content_.reset(new std::byte[bytes]);  // not filled with zeros: the pages are taken as the bytes come
    return content_.get();
  }
  // Takes over a message that was buffered.
  void put(std::unique_ptr<std::byte[]> buffer) {
    if (taking()) {
      content_ = std::move(buffer);
    } else {
      copy_bytes(room_.data(), buffer.get(), header_.bytes);
    }
  }
  // Matches it with a message of that rank and number, which was there or is arriving.
  void match(int peer, const Header& header, std::uint64_t sequence, bool was_there) {
    const bool was_known = peer_.load(std::memory_order_relaxed) == peer && !taking();
    header_ = header;
    peer_.store(peer, std::memory_order_release);
    if (label_.is_recorded) matched_at_ = ticks();
    if (!recorded_.is_under_way()) return;
    sequence_.store(sequence, std::memory_order_relaxed);
    if (was_known) recorded_.tell(sequence);
    else recorded_.tell(received(header.call).summary_to(peer), header.call.count, header.bytes, sequence);
    was_there ? recorded_.all_came(0) : recorded_.all_came();
  }
  static Call received(Call sent) {
    sent.kind = OpKind::recv;
    return sent;
  }
  // Ends a probe that has found a message.
  void find(int peer, const Header& header) {
    header_ = header;
    peer_.store(peer, std::memory_order_release);
    finish(State::done);
  }
  void finish(State state) {
    if (over()) return;
    recorded_.leave(state == State::failed);
    state_.store(state, std::memory_order_release);
    for (const auto& call : std::exchange(then_, {})) call();
  }

  const Kind kind_;
  const Label label_;
  const std::span<const std::byte> data_;  // of a send
  const std::span<std::byte> room_;        // of a receive
  std::unique_ptr<std::byte[]> content_;   // of a take
  std::atomic<int> peer_;
  std::atomic<State> state_{State::pending};
  std::uint64_t order_ = 0;  // of a receive among all that were posted
  unsigned parts_ = 0;       // of a send, that are not yet written
  Header header_{};
  Recorded recorded_;
  std::uint64_t matched_at_ = 0;
  std::atomic<std::uint64_t> entry_{0}, sequence_{0};
  std::vector<std::function<void()>> then_;  // called once when it is over, with the engine's lock held
};
using TransferPtr = std::shared_ptr<Transfer>;

}  // namespace torsh
