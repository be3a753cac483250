// Matches messages with receives.
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

// A message that is arriving or has arrived.
struct Arrival {
  int peer;
  Header header;
  std::uint64_t order = 0;              // among all arrivals
  std::uint64_t sequence = 0;           // among those of its sender that are no collective's, from 1 on
  unsigned parts = 0;  // parts that are not complete
  TransferPtr receiver;  // null while it is unexpected
  std::byte* target = nullptr;  // where its bytes go; null: they must wait in the stream
  std::unique_ptr<std::byte[]> buffer;  // used if there is no receiver yet
};
using ArrivalPtr = std::shared_ptr<Arrival>;

// Matches by sender, purpose and tag, in the order of posting and of arrival. An unexpected message is read as long
// as little of its sender is buffered, or if it blocks another message that is waited for. Throws a Failure of kind
// mismatch if the two calls disagree.
class Matcher {
 public:
  Matcher(int rank, int ranks) : rank_(rank), boxes_(static_cast<std::size_t>(ranks)) {}

  // Enters a collective. From now on messages with this number must have the same call.
  void begin(const Label& label);
  // Posts a receive, a take or a probe. It matches a message that is there, or waits for one.
  void post(const TransferPtr& receive);
  // Withdraws a posted receive, if it still waits.
  void withdraw(const TransferPtr& receive);
  // Handles a message whose header was read: gives it a target, or none yet.
  void arrive(const ArrivalPtr& arrival);
  // Handles the end of a message.
  void complete(Arrival& arrival);

  // Whether a receive waits for some message of the peer, by name or from any source.
  bool wants(int peer) const { return wants_by_name(peer) || !any_.empty(); }
  bool wants_by_name(int peer) const { return !box(peer).posted.empty(); }
  bool wants_any() const { return !any_.empty(); }
  // Fails all waiting receives, and those whose messages are arriving.
  void fail_all();
  // A receive that waits for the peer, else one from any source, else null.
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
