// Which message goes to which receive.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "common/failure.hpp"
#include "messages/transfer.hpp"

namespace torsh {

// A message that is coming in, or has come.
struct Arrival {
  int peer;
  Header header;
  std::uint64_t order = 0;              // among all arrivals
  std::uint64_t sequence = 0;           // among those of its sender that are no collective's, from 1 on
  unsigned parts = 0;                   // that have not come completely
  TransferPtr receiver;                 // none while nobody has asked for it
  std::byte* target = nullptr;          // where its bytes go; null: it has to wait outside
  std::unique_ptr<std::byte[]> buffer;  // if they go to no receiver's room
};
using ArrivalPtr = std::shared_ptr<Arrival>;

// Matches by sender, purpose and tag, in the order of posting and of arrival. A message that nobody
// has asked for is let in as long as little of its sender is kept, or if it stands in the way of
// another that somebody waits for. Throws a Failure of kind mismatch where the two calls disagree.
class Postbox {
 public:
  Postbox(int rank, int ranks) : rank_(rank), boxes_(static_cast<std::size_t>(ranks)) {}

  // This rank is in a collective from now on: messages of this number must be of the same call.
  void begin(const Label& label);
  // A receive or a take: it takes a message that is there, or waits for one. A probe: finds one, or waits.
  void post(const TransferPtr& receive);
  // It waits no more, if it did.
  void withdraw(const TransferPtr& receive);
  // A message whose header was read: gives it a target, or not yet.
  void arrive(const ArrivalPtr& arrival);
  // All its bytes are where they go.
  void complete(Arrival& arrival);

  // Whether a receive waits for some message of the peer, by name or from any source.
  bool wants(int peer) const { return wants_by_name(peer) || !any_.empty(); }
  bool wants_by_name(int peer) const { return !box(peer).posted.empty(); }
  bool wants_any() const { return !any_.empty(); }
  // The receives that wait, and those whose messages are coming in, fail.
  void fail_all();
  // A receive that waits for the peer, or for anybody if there is none; null if neither.
  const Transfer* waiting_for(int peer) const;

 private:
  struct Box {
    std::deque<TransferPtr> posted;
    std::list<ArrivalPtr> unexpected;
    std::size_t buffered = 0;
    std::uint64_t arrived = 0;  // messages that are no collective's
  };

  // One of this rank's last collectives.
  struct Begun {
    std::uint64_t sequence = ~std::uint64_t{0};
    Call call{};
  };

  const Box& box(int peer) const { return boxes_[static_cast<std::size_t>(peer)]; }
  Box& box(int peer) { return boxes_[static_cast<std::size_t>(peer)]; }
  TransferPtr take_receiver(const Arrival& arrival);
  ArrivalPtr first_arrival(const Transfer& receive) const;
  void tell_probes(const Arrival& arrival);
  void join(const TransferPtr& receive, Arrival& arrival, bool was_there);
  void let_in(Box& box);
  void deliver(Arrival& arrival);
  void compare(const Arrival& arrival) const;
  void demand_coming(const Transfer& receive) const;
  Failure mismatch(const Transfer& receive, const Arrival& arrival) const;
  Failure mismatch(const Label& own, const Arrival& arrival) const;

  const int rank_;
  std::vector<Box> boxes_;  // by peer
  std::deque<TransferPtr> any_;
  std::uint64_t posts_ = 0, arrivals_ = 0;
  std::array<Begun, 64> begun_{};  // by number
};

}  // namespace torsh
