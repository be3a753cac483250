// The control lanes to the ranks of other nodes: who is there, who has left, and why the group died.
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
#include "transport/standing.hpp"
#include "transport/tcp/control_frame.hpp"
#include "transport/tcp/watch.hpp"

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
  // Takes in what has come, and answers roll calls. The first failure that a peer has announced,
  // from then on.
  std::optional<Failure> poll();
  // Of a peer that is not reached by a control lane: present.
  Standing standing(int peer);

  // Tells all peers why the group is dead, as far as that can be done at once.
  void announce(const Failure& failure);
  // Which peers answer within so many seconds that they are in this operation or a later one. Those
  // that are stopped, or compute, do not.
  std::vector<int> roll_call(std::uint64_t sequence, double seconds);
  // Tells all peers that this rank leaves the group as it should. The last thing to be done.
  void goodbye();

 private:
  struct Line {
    int peer = -1;
    RankSocket socket;
    std::vector<std::byte> in, out;
    Standing standing = Standing::present;
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
  void end(Line& line, Standing standing, std::string reason);
  void end_by_error(Line& line, int error);
  Line* line_to(int peer);

  const int ranks_;
  const std::function<std::uint64_t()> own_sequence_;
  std::mutex mutex_;  // of all that follows
  Watch watch_;
  std::vector<Line> lines_;
  std::optional<Failure> announced_;
  std::uint32_t roll_calls_ = 0;
};

}  // namespace torsh::tcp
