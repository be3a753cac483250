// Ranks write into each other's buffers. No write may come after the owner, because of an error, has
// taken its memory back.
#pragma once

#include <exception>

#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// While peers may write into this rank's buffers. If an error ends that, they have all stopped when
// the error leaves this scope: the memory may then be used for something else.
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

// While this rank writes into a buffer of another. Throws, having written nothing, once the group has
// failed: then the owner may have taken the memory back.
class Writing {
 public:
  // With plain stores, into memory that stays mapped: after an error it holds anything.
  explicit Writing(shm::Channel& channel) : Writing(channel, 0, 0) {}
  // With the system's copying.
  Writing(shm::Channel& channel, std::uint64_t address, std::size_t bytes);
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  // How many bytes were copied; 0 if the peer cannot be reached or its memory no more.
  std::size_t copy(int peer, const std::byte* from);

 private:
  shm::Channel& channel_;
  shm::Announcement& announced_;
};

}  // namespace torsh::in_node
