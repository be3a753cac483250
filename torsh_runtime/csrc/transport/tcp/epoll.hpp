// Sleeping until one of many descriptors is ready.
#pragma once

#include <span>
#include <vector>

#include "transport/descriptor.hpp"

namespace torsh::tcp {

class Epoll {
 public:
  static constexpr unsigned readable = 1, writable = 4;  // epoll's own numbers

  // Readable when one of those it watches is ready; -1 before it has been given one.
  int descriptor() const { return epoll_.number(); }
  // From now on; 0 is not at all. A descriptor must not be watched when it is closed. Throws
  // std::system_error.
  void set(int descriptor, unsigned events);
  // The descriptors that are ready, after at most so many seconds; valid until the next call.
  // By any number of threads, each with room of its own.
  std::span<const int> wait(std::vector<int>& ready, double seconds) const;

 private:
  Descriptor epoll_;
  std::vector<unsigned> events_;  // by descriptor
};

}  // namespace torsh::tcp
