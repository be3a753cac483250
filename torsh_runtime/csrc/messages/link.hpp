// Messages to and from one peer over the lanes of streams to it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "messages/postbox.hpp"
#include "transport/stream.hpp"

namespace torsh {

class Link {
 public:
  // The same number of lanes at both ends; none to this rank itself.
  Link(int peer, std::vector<std::unique_ptr<Stream>> streams);

  int peer() const { return peer_; }
  void send(const TransferPtr& transfer);
  // Write and read what can be now; true if bytes moved. With `eager` also messages that nobody has
  // asked for are read. Neither throws StreamEnded: see end(). The second may throw what Postbox does.
  bool push();
  bool pull(Postbox& box, bool eager);

  bool is_sending() const;
  // Whether a message is half read, and may be read on.
  bool is_reading() const;
  // Whether such a message is one that somebody has asked for.
  bool is_receiving() const;
  // A message that is on its way or half read for somebody; null if there is none.
  const Transfer* pending() const;
  // Why the link has ended; null as long as it has not.
  const std::string* end() const { return end_.empty() ? nullptr : &end_; }
  // What to watch a lane for while nothing can be moved: see Watch.
  std::size_t lanes() const { return lanes_.size(); }
  int descriptor(std::size_t lane) const { return lanes_[lane].stream->descriptor(); }
  unsigned events(std::size_t lane, bool eager) const;
  // Before a lane is watched: what is half read need not come by packets.
  void expect(std::size_t lane);
  int peer_cpu() const { return lanes_.empty() ? -1 : lanes_.front().stream->peer_cpu(); }
  // Sends and receives that are under way fail; the link is of no more use.
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
  bool pull_first(Postbox& box, bool eager);
  bool pull_frames(Postbox& box, bool eager);
  bool pull_part(Lane& lane, Postbox& box, std::size_t& budget);
  bool read_header(Postbox& box);
  void begin(Postbox& box, const Header& header);
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
