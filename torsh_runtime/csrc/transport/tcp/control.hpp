// The control connections to the ranks of other nodes: which are there, which have left, and why the group failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/failure.hpp"
#include "transport/forks.hpp"
#include "transport/peer_state.hpp"
#include "transport/tcp/control_frame.hpp"
#include "transport/tcp/epoll.hpp"

namespace torsh::tcp {

// Any thread. Nothing blocks but roll_call().
class Control {
 public:
  // The connected sockets to peers, by their rank in the group of `ranks`. A peer whose machine is
  // silent for `heartbeat` seconds becomes unreachable. `own_sequence` says which operation this
  // rank is in. Throws std::system_error.
  Control(int ranks, std::vector<std::pair<int, Descriptor>> sockets, double heartbeat,
          std::function<std::uint64_t()> own_sequence);

  // Readable when there is something for poll() to do.
  int descriptor() const { return watch_.descriptor(); }
  // Reads what has come, and answers roll calls. Returns the first failure that a peer has announced, from then on.
  std::optional<Failure> poll();
  // `present` for a peer without a control connection.
  PeerState peer_state(int peer);

  // Reports to all peers why the group failed, as far as that is possible without blocking.
  void announce(const Failure& failure);
  // The peers that answer within `seconds` that they are in this operation or a later one. Stopped or computing peers
  // do not answer.
  std::vector<int> roll_call(std::uint64_t sequence, double seconds);
  // Tells all peers that this rank leaves regularly. It must be the last call.
  void goodbye();

 private:
  struct Line {
    int peer = -1;
    RankSocket socket;
    std::vector<std::byte> in, out;
    PeerState peer_state = PeerState::present;
    std::string end;
    std::uint32_t answered = 0;  // the last roll call that it answered,
    std::uint64_t sequence = 0;  // and with what

    bool is_open() const { return socket.number() >= 0; }
  };

  using Lock = std::lock_guard<std::mutex>;

  void take_in();
  void read(Line& line);
  void parse(Line& line);
  bool take_frame(Line& line);
  void obey(Line& line, const ControlHeader& header, std::span<const std::byte> body);
  void say(Line& line, ControlHeader header, std::span<const std::byte> body = {});
  void flush(Line& line);
  void end(Line& line, PeerState peer_state, std::string reason);
  void end_by_error(Line& line, int error);
  Line* line_to(int peer);

  const int ranks_;
  const std::function<std::uint64_t()> own_sequence_;
  std::mutex mutex_;  // of all that follows
  Epoll watch_;
  std::vector<Line> lines_;
  std::optional<Failure> announced_;
  std::uint32_t roll_calls_ = 0;
};

}  // namespace torsh::tcp
