// Lets ranks write into each other's buffers. No write may come after an owner has taken its memory back because of
// an error.
#pragma once

#include <exception>

#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// Peers may write into this rank's buffers during its lifetime. If an error ends it, all peers have stopped when the
// error leaves this scope, so the memory may be used for something else.
class Exposed {
 public:
  explicit Exposed(shm::Channel& channel) : channel_(channel), errors_(std::uncaught_exceptions()) {}
  ~Exposed() {
    if (std::uncaught_exceptions() > errors_) retreat();
  }
  Exposed(const Exposed&) = delete;
  Exposed& operator=(const Exposed&) = delete;

 private:
  void retreat();

  shm::Channel& channel_;
  const int errors_;
};

// This rank writes into a peer's buffer during its lifetime. Throws before anything is written if the group has
// failed, because the owner may have taken the memory back.
class Writing {
 public:
  // For plain stores into memory that stays mapped. After an error its contents are undefined.
  explicit Writing(shm::Channel& channel) : Writing(channel, 0, 0) {}
  // For cross-memory attach.
  Writing(shm::Channel& channel, std::uint64_t address, std::size_t bytes);
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  // Returns the number of bytes copied; 0 if the peer or its memory cannot be accessed any more.
  std::size_t copy(int peer, const std::byte* from);

 private:
  shm::Channel& channel_;
  shm::Announcement& announced_;
};

}  // namespace torsh::in_node
