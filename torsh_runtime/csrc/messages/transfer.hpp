// A message as its sender or its receiver sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "messages/frame.hpp"

namespace torsh {

constexpr int any_source = -1;

// What a message is for, and what the sender, or the receiver, is doing: they must agree.
struct Label {
  Purpose purpose{};
  std::uint64_t tag = 0;  // the user's; a collective's sequence number
  Call call{};

  // Of the group's operations; 0 for a message of the user.
  std::uint64_t sequence() const { return purpose == Purpose::collective ? tag : 0; }
};

// One message on its way; its buffer must stay until it is over. Made by a Messenger.
class Transfer {
 public:
  Transfer(int peer, const Label& label, std::span<const std::byte> data)
      : label_(label), data_(data), peer_(peer), sending_(true) {}
  Transfer(int peer, const Label& label, std::span<std::byte> room)
      : label_(label), room_(room), peer_(peer), sending_(false) {}

  bool done() const { return state_.load(std::memory_order_acquire) == State::done; }
  // Done or failed; Messenger::wait throws what it failed with.
  bool over() const { return state_.load(std::memory_order_acquire) != State::pending; }
  // The rank at the other end; of a receive from any source that rank once it is done.
  int peer() const { return peer_.load(std::memory_order_acquire); }
  bool sending() const { return sending_; }
  const Label& label() const { return label_; }

 private:
  enum class State : std::uint8_t { pending, done, failed };
  friend class Link;
  friend class Postbox;
  friend class Engine;

  void finish(State state) { state_.store(state, std::memory_order_release); }

  const Label label_;
  const std::span<const std::byte> data_;  // of a send
  const std::span<std::byte> room_;        // of a receive
  std::atomic<int> peer_;
  const bool sending_;
  std::atomic<State> state_{State::pending};
  std::uint64_t order_ = 0;  // of a receive among all that were posted
  unsigned parts_ = 0;       // of a send, that are not yet written
  Header header_{};
};
using TransferPtr = std::shared_ptr<Transfer>;

}  // namespace torsh
