#include "transport/tcp/control.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "common/clock.hpp"
#include "transport/tcp/socket_stream.hpp"

namespace torsh::tcp {
namespace {

constexpr std::size_t out_limit = 64 << 10;  // bytes that a peer has not taken; more are dropped
constexpr std::size_t read_bytes = 4096;
constexpr double look_seconds = 0.02;  // between two looks for answers

PeerState standing_after(int error) {
  const auto silent = {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN};
  return std::find(silent.begin(), silent.end(), error) != silent.end() ? PeerState::unreachable : PeerState::lost;
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Control::Control(int ranks, std::vector<std::pair<int, Descriptor>> sockets, double heartbeat,
                 std::function<std::uint64_t()> own_sequence)
    : ranks_(ranks), own_sequence_(std::move(own_sequence)) {
  for (auto& [peer, socket] : sockets) {
    prepare(socket.number(), heartbeat, Use::control);
    watch_.set(socket.number(), Epoll::readable);
    Line& line = lines_.emplace_back();
    line.peer = peer;
    line.socket = RankSocket(std::move(socket));
  }
}

std::optional<Failure> Control::poll() {
  const Lock lock(mutex_);
  take_in();
  return announced_;
}

void Control::take_in() {
  std::vector<int> ready;
  watch_.wait(ready, 0);
  for (Line& line : lines_) {
    if (std::find(ready.begin(), ready.end(), line.socket.number()) == ready.end() || !line.is_open()) continue;
    flush(line);
    read(line);
  }
}

void Control::read(Line& line) {
  while (line.is_open()) {
    const std::size_t had = line.in.size();
    line.in.resize(had + read_bytes);
    const ssize_t bytes = recv(line.socket.number(), line.in.data() + had, read_bytes, MSG_DONTWAIT);
    const int error = errno;
    line.in.resize(had + static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    if (bytes > 0) {
      parse(line);
    } else if (bytes == 0) {
      return end(line, PeerState::lost, "it has closed the connection");
    } else {
      return would_block(error) ? void() : end_by_error(line, error);
    }
  }
}

void Control::parse(Line& line) {
  while (line.is_open() && take_frame(line)) {
  }
}

// False if there is no complete frame.
bool Control::take_frame(Line& line) {
  ControlHeader header;
  if (line.in.size() < sizeof header) return false;
  std::memcpy(&header, line.in.data(), sizeof header);
  if (header.magic != ControlHeader::valid_magic || header.bytes > account_limit(ranks_)) {
    end(line, PeerState::lost, "it has sent what is no notice of this library");
    return false;
  }
  const std::size_t bytes = sizeof header + header.bytes;
  if (line.in.size() < bytes) return false;
  obey(line, header, std::span(line.in).subspan(sizeof header, header.bytes));
  if (line.is_open()) line.in.erase(line.in.begin(), line.in.begin() + static_cast<std::ptrdiff_t>(bytes));
  return true;
}

void Control::obey(Line& line, const ControlHeader& header, std::span<const std::byte> body) {
  switch (header.notice) {
    case Notice::abort:
      if (std::optional<Failure> failure = read_account(body, ranks_)) {
        if (!announced_) announced_ = std::move(failure);
        return;
      }
      break;
    case Notice::goodbye:
      return end(line, PeerState::left, "it has left the group");
    case Notice::roll_call:
      return say(line, {.notice = Notice::answer, .call = header.call, .sequence = own_sequence_()});
    case Notice::answer:
      line.answered = header.call;
      line.sequence = header.sequence;
      return;
  }
  end(line, PeerState::lost, "it has sent what is no notice of this library");
}

void Control::say(Line& line, ControlHeader header, std::span<const std::byte> body) {
  if (!line.is_open() || line.out.size() + sizeof header + body.size() > out_limit) return;
  header.bytes = static_cast<std::uint32_t>(body.size());
  const auto head = std::as_bytes(std::span(&header, 1));
  line.out.insert(line.out.end(), head.begin(), head.end());
  line.out.insert(line.out.end(), body.begin(), body.end());
  flush(line);
}

void Control::flush(Line& line) {
  if (line.out.empty() || !line.is_open()) return;
  const ssize_t bytes = send(line.socket.number(), line.out.data(), line.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (bytes > 0) line.out.erase(line.out.begin(), line.out.begin() + bytes);
  if (bytes < 0 && !would_block(errno) && errno != EPIPE && errno != ECONNRESET) return end_by_error(line, errno);
  watch_.set(line.socket.number(), line.out.empty() ? Epoll::readable : Epoll::readable | Epoll::writable);
}

void Control::end_by_error(Line& line, int error) {
  end(line, standing_after(error), std::generic_category().message(error));
}

void Control::end(Line& line, PeerState peer_state, std::string reason) {
  watch_.set(line.socket.number(), 0);
  line.socket = RankSocket();
  line.peer_state = peer_state;
  line.end = std::move(reason);
}

Control::Line* Control::line_to(int peer) {
  const auto at = std::find_if(lines_.begin(), lines_.end(), [peer](const Line& line) { return line.peer == peer; });
  return at == lines_.end() ? nullptr : &*at;
}

PeerState Control::peer_state(int peer) {
  const Lock lock(mutex_);
  take_in();
  const Line* line = line_to(peer);
  return line == nullptr ? PeerState::present : line->peer_state;
}

void Control::announce(const Failure& failure) {
  const std::vector<std::byte> account = write_account(failure);
  const Lock lock(mutex_);
  for (Line& line : lines_) say(line, {.notice = Notice::abort, .sequence = failure.sequence}, account);
}

std::vector<int> Control::roll_call(std::uint64_t sequence, double seconds) {
  const double until = now() + seconds;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint32_t call = ++roll_calls_;
  for (Line& line : lines_) say(line, {.notice = Notice::roll_call, .call = call, .sequence = sequence});
  const auto waits = [call](const Line& line) { return line.is_open() && line.answered != call; };
  std::vector<int> ready;
  while (std::any_of(lines_.begin(), lines_.end(), waits) && now() < until) {
    lock.unlock();
    watch_.wait(ready, std::min(look_seconds, until - now()));
    lock.lock();
    take_in();
  }
  std::vector<int> present;
  for (const Line& line : lines_) {
    if (line.answered == call && line.sequence >= sequence) present.push_back(line.peer);
  }
  return present;
}

void Control::goodbye() {
  const Lock lock(mutex_);
  take_in();
  for (Line& line : lines_) {
    say(line, {.notice = Notice::goodbye});
    if (line.is_open()) shutdown(line.socket.number(), SHUT_WR);
  }
}

}  // namespace torsh::tcp
