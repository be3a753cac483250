// Sends and receives messages of one peer over the lanes of streams to it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/matcher.hpp"
#include "transport/stream.hpp"

namespace torsh {

class Link {
 public:
  // The same number of lanes at both ends; none to this rank itself.
  Link(int peer, std::vector<std::unique_ptr<Stream>> streams);

  int peer() const { return peer_; }
  void send(const TransferPtr& transfer);
  // Write and read what is possible now; return whether bytes moved. With `eager`, unexpected messages are read too.
  // Neither throws StreamEnded: see end(). pull() may throw what Matcher does.
  bool push();
  bool pull(Matcher& box, bool eager);

  bool is_sending() const;
  // Whether a message is partly read and can be continued.
  bool is_reading() const;
  // Whether such a message has a receiver.
  bool is_receiving() const;
  // A message that is being sent, or is partly read for a receiver; null if there is none.
  const Transfer* pending() const;
  // Why the link has ended; null as long as it has not.
  const std::string* end() const { return end_.empty() ? nullptr : &end_; }
  // The events to watch on a lane while nothing can be moved: see tcp::Epoll.
  std::size_t lanes() const { return lanes_.size(); }
  int descriptor(std::size_t lane) const { return lanes_[lane].stream->descriptor(); }
  unsigned events(std::size_t lane, bool eager) const;
  // Called before a lane is watched: a partly read message need not wake the thread for each packet.
  void expect(std::size_t lane);
  int peer_cpu() const { return lanes_.empty() ? -1 : lanes_.front().stream->peer_cpu(); }
  // Current sends and receives fail, and the link cannot be used any more.
  void fail_all();
  // Whether all that was written will reach the peer, even if the link is closed now.
  bool is_through() const;
  void close() { lanes_.clear(); }

 private:
  struct Outgoing {
    TransferPtr transfer;
    std::span<const std::byte> head, body;
  };
  struct Incoming {
    ArrivalPtr arrival;
    std::size_t offset, left;
  };
  struct Lane {
    std::unique_ptr<Stream> stream;
    std::deque<Outgoing> out;
    std::deque<Incoming> in;
  };

  template <typename Step>
  bool guarded(Step step);
  void queue(std::size_t lane, const Outgoing& piece);
  bool push(Lane& lane);
  bool pull_first(Matcher& box, bool eager);
  bool pull_frames(Matcher& box, bool eager);
  bool pull_part(Lane& lane, Matcher& box, std::size_t& budget);
  bool read_header(Matcher& box);
  void begin(Matcher& box, const Header& header);
  std::size_t fill(Lane& lane, std::span<std::byte> room);
  static bool is_open(const Lane& lane) { return !lane.in.empty() && lane.in.front().arrival->target != nullptr; }

  const int peer_;
  std::vector<Lane> lanes_;
  std::string end_;
  std::string ending_;  // why the first lane has ended, as long as others still hold what was sent
  // Lane 0 is read ahead, so that a small message takes one read.
  std::vector<std::byte> ahead_;
  std::size_t ahead_from_ = 0, ahead_to_ = 0;
  Header header_{};
  std::size_t header_bytes_ = 0;  // of it that have come
};

}  // namespace torsh
