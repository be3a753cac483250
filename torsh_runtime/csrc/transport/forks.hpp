// A fork of a rank's process is no rank, and is to hold nothing that ends with the rank.
#pragma once

#include "transport/descriptor.hpp"

namespace torsh {

// How often this process has been forked off from one that used this library.
unsigned fork_count();

// A socket that forks of this process close at once. Otherwise the connection would last as long as
// the fork lives (a data loader's worker, say), and peers would not notice that the rank has died.
class RankSocket {
 public:
  explicit RankSocket(Descriptor socket = Descriptor());
  ~RankSocket();
  RankSocket(RankSocket&& other) noexcept = default;
  RankSocket& operator=(RankSocket&& other) noexcept = default;

  // -1 is none.
  int number() const { return socket_.number(); }

 private:
  Descriptor socket_;
};

}  // namespace torsh
