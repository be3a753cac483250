#include "transport/shm/wakeup.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace torsh::shm {
namespace {

constexpr std::size_t path_offset = offsetof(sockaddr_un, sun_path);

// The kernel picks a free name in the abstract namespace when it is given none (unix(7)).
std::size_t bind_anywhere(int descriptor, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof address.sun_family;
  if (bind(descriptor, reinterpret_cast<const sockaddr*>(&address), length) != 0) return 0;
  length = sizeof address;
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return length - path_offset;
}

}  // namespace

void WakeupSocket::make() {
  Descriptor made(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (made.number() < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot make a Unix socket to be woken by");
  }
  sockaddr_un address{};
  const std::size_t length = bind_anywhere(made.number(), address);
  if (length == 0 || length > sizeof state_.name) {
    throw std::system_error(errno, std::generic_category(), "cannot name the Unix socket to be woken by");
  }
  std::memcpy(state_.name, address.sun_path, length);
  state_.length = static_cast<std::uint32_t>(length);  // visible before the count of sleepers
  socket_ = std::move(made);
}

int WakeupSocket::descriptor() {
  if (socket_.number() < 0) make();
  return socket_.number();
}

void WakeupSocket::drain() {
  char rung[16];
  while (recv(descriptor(), rung, sizeof rung, MSG_DONTWAIT) >= 0) {
  }
}

// A full queue does no harm, because the sleeper has not looked yet. If this rank cannot have a socket, the peer
// sleeps until its next check.
void WakeupSocket::send_datagram(const WakeupState& peer) {
  try {
    descriptor();
  } catch (const std::system_error&) {
    return;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min<std::size_t>(peer.length, sizeof peer.name);
  std::memcpy(address.sun_path, peer.name, length);
  sendto(descriptor(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&address),
         static_cast<socklen_t>(path_offset + length));
}

}  // namespace torsh::shm
