#include "transport/tcp/socket_stream.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace torsh::tcp {
namespace {

void set(int descriptor, int level, int option, int value) {
  if (setsockopt(descriptor, level, option, &value, sizeof value) != 0) {
    throw std::system_error(errno, std::generic_category(), "setsockopt of a peer's connection");
  }
}

bool is_tcp(int descriptor) {
  int protocol = 0;
  socklen_t length = sizeof protocol;
  return getsockopt(descriptor, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_TCP;
}

// Within a machine a message's packets are handed over at once, by whichever processor has the
// sender's call or the receiver's acknowledgement to work on. With much under way at a time they
// overtake each other, which TCP takes for loss and sends all again: 64 MiB took twice as long with
// the buffer that the kernel chooses. No network is as fast as the limit.
constexpr unsigned local_round_trip = 8;  // µs
constexpr int local_buffer = 128 << 10;   // of which the kernel makes twice as much

bool is_within_machine(int descriptor) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return info.tcpi_min_rtt != 0 && info.tcpi_min_rtt <= local_round_trip;  // 0: not known
}

constexpr std::size_t most_expected = 512 << 10;

// The outcome of a call that must not block: 0 if it would have.
std::size_t moved(ssize_t bytes) {
  if (bytes >= 0) return static_cast<std::size_t>(bytes);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) return 0;
  throw StreamEnded(std::generic_category().message(errno));
}

iovec part(std::span<const std::byte> bytes) { return {const_cast<std::byte*>(bytes.data()), bytes.size()}; }

}  // namespace

void prepare(int descriptor, double heartbeat, Use use) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  if (!is_tcp(descriptor)) return;
  const int probes = 2;
  const int interval = std::clamp(static_cast<int>(heartbeat / (probes + 1)), 1, 3600);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, probes);
  if (use == Use::data) {
    if (is_within_machine(descriptor)) set(descriptor, SOL_SOCKET, SO_SNDBUF, local_buffer);
    return;
  }
  const double drain = std::clamp(heartbeat, 1.0, 3600.0);
  set(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(drain * 1000));
}

SocketStream::SocketStream(Descriptor socket)
    : socket_(std::move(socket)), within_machine_(is_within_machine(socket_.number())) {}

std::size_t SocketStream::write(std::span<const std::byte> first, std::span<const std::byte> second) {
  iovec parts[] = {part(first), part(second)};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = second.empty() ? 1 : 2;
  return moved(sendmsg(descriptor(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

std::size_t SocketStream::read(std::span<std::byte> room) {
  if (room.empty()) return 0;
  const ssize_t bytes = recv(descriptor(), room.data(), room.size(), MSG_DONTWAIT);
  if (bytes == 0) throw StreamEnded("it has closed the connection");
  return moved(bytes);
}

// A thread that wakes for each packet takes a processor's time from the program. What the socket
// may hold of it the kernel knows best; a socket other than TCP's may refuse.
void SocketStream::expect(std::size_t bytes) {
  const int wanted = static_cast<int>(std::min(bytes, most_expected));
  if (wanted == expected_) return;
  expected_ = wanted;
  setsockopt(descriptor(), SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

// A socket that is closed with bytes unread resets the connection, and what the peer has not
// acknowledged by then is lost (RFC 1122, 4.2.2.13).
bool SocketStream::is_through() const {
  int unacknowledged = 0;
  return ioctl(descriptor(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

// Within a machine it is the sender that puts its packets into this socket.
int SocketStream::peer_cpu() const {
  int cpu = -1;
  socklen_t length = sizeof cpu;
  if (!within_machine_ || getsockopt(descriptor(), SOL_SOCKET, SO_INCOMING_CPU, &cpu, &length) != 0) return -1;
  return cpu;
}

}  // namespace torsh::tcp
