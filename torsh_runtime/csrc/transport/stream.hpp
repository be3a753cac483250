// The port of the transports below the messages: a reliable stream of bytes to one peer.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string>

namespace torsh {

// The peer's end of a stream is gone; nothing more will come or go. what() says how that showed.
class StreamEnded : public std::exception {
 public:
  explicit StreamEnded(std::string reason) : reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  std::string reason_;
};

// Never blocks. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;

  // Writes the first span and then the second. Returns the number of bytes taken; 0 if none can be now. Throws
  // StreamEnded.
  virtual std::size_t write(std::span<const std::byte> first, std::span<const std::byte> second) = 0;
  // Returns the number of bytes read; 0 if there are none now. Throws StreamEnded after everything written before the
  // end has been read.
  virtual std::size_t read(std::span<std::byte> room) = 0;
  // The descriptor for epoll; -1 if the peer uses the wakeup socket instead.
  virtual int descriptor() const = 0;
  // The descriptor need not become readable before so many bytes have arrived; more are sure to come.
  virtual void expect(std::size_t) {}
  // Whether all that was written can still be read by the peer if the stream is closed now.
  virtual bool is_through() const = 0;
  // Where the peer last ran; -1 if that is not known or elsewhere.
  virtual int peer_cpu() const { return -1; }
};

}  // namespace torsh
