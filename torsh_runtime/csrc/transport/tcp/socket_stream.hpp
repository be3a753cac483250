// A stream over a connected socket.
#pragma once

#include "transport/forks.hpp"
#include "transport/stream.hpp"

namespace torsh::tcp {

enum class Use { data, control };

// Sends without delay, and ends a connection on which a peer's machine has been silent for about
// `heartbeat` seconds. On the control socket that goes for bytes it has not acknowledged, too; not
// on data sockets, where a peer that computes for long may rightly take nothing. Non-blocking.
// Sockets other than TCP's are left as they are. Throws std::system_error.
void prepare(int descriptor, double heartbeat, Use use);

class SocketStream : public Stream {
 public:
  explicit SocketStream(Descriptor socket);

  std::size_t write(std::span<const std::byte> first, std::span<const std::byte> second) override;
  std::size_t read(std::span<std::byte> room) override;
  int descriptor() const override { return socket_.number(); }
  void expect(std::size_t bytes) override;
  bool is_through() const override;
  int peer_cpu() const override;

 private:
  RankSocket socket_;
  const bool within_machine_;
  int expected_ = 1;
};

}  // namespace torsh::tcp
