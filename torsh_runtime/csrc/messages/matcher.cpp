#include "messages/matcher.hpp"

#include <algorithm>
#include <new>

namespace torsh {
namespace {

constexpr std::size_t buffered_limit = 16 << 20;  // unexpected bytes per sender

// Collectives run in the same order on all ranks, so their messages match in order, whatever their label. A message
// of another operation shows that the ranks disagree.
bool matches(const Transfer& receive, const Header& header) {
  const Label& label = receive.label();
  if (label.purpose != header.purpose) return false;
  return header.purpose == Purpose::collective || label.any_tag || label.tag == header.tag;
}

auto find(std::deque<TransferPtr>& posted, const Header& header) {
  const auto fits = [&](const TransferPtr& receive) { return !receive->probing() && matches(*receive, header); };
  return std::find_if(posted.begin(), posted.end(), fits);
}

bool is_same_call(const Transfer& receive, const Header& header) {
  const Call& own = receive.label().call;
  if (header.purpose != Purpose::collective) return own.dtype == header.call.dtype;
  return receive.label().tag == header.tag && own.fingerprint() == header.call.fingerprint();
}

// Whether the sender is in a later collective, having left the receiver's without sending a message.
bool has_passed(const Header& header, const Transfer& receive) {
  const Label& own = receive.label();
  return header.purpose == Purpose::collective && own.purpose == Purpose::collective && own.tag < header.tag;
}

}  // namespace

void Matcher::begin(const Label& label) {
  begun_[label.tag % begun_.size()] = {label.tag, label.call};
  for (const Box& each : boxes_) {
    for (const ArrivalPtr& arrival : each.unexpected) compare(*arrival);
  }
}

void Matcher::post(const TransferPtr& receive) {
  receive->order_ = ++posts_;
  if (const ArrivalPtr arrival = first_arrival(*receive)) {
    if (receive->probing()) return receive->find(arrival->peer, arrival->header);
    box(arrival->peer).unexpected.remove(arrival);
    return join(receive, *arrival, true);
  }
  demand_coming(*receive);
  const int peer = receive->peer();
  (peer == any_source ? any_ : box(peer).posted).push_back(receive);
  if (peer != any_source) return let_in(box(peer));
  for (Box& each : boxes_) let_in(each);
}

void Matcher::arrive(const ArrivalPtr& arrival) {
  arrival->order = ++arrivals_;
  if (arrival->header.purpose != Purpose::collective) arrival->sequence = ++box(arrival->peer).arrived;
  compare(*arrival);
  if (const TransferPtr receive = take_receiver(*arrival)) return join(receive, *arrival, false);
  Box& from = box(arrival->peer);
  from.unexpected.push_back(arrival);
  tell_probes(*arrival);
  let_in(from);
}

void Matcher::tell_probes(const Arrival& arrival) {
  const auto finds = [&](const TransferPtr& each) {
    if (!each->probing() || !matches(*each, arrival.header)) return false;
    each->find(arrival.peer, arrival.header);
    return true;
  };
  std::erase_if(box(arrival.peer).posted, finds);
  std::erase_if(any_, finds);
}

void Matcher::withdraw(const TransferPtr& receive) {
  std::erase(receive->peer() == any_source ? any_ : box(receive->peer()).posted, receive);
}

// The first posted receive among those that wait for this peer and those from any source.
TransferPtr Matcher::take_receiver(const Arrival& arrival) {
  std::deque<TransferPtr>& named = box(arrival.peer).posted;
  const auto by_name = find(named, arrival.header);
  const auto by_any = find(any_, arrival.header);
  if (by_name == named.end() && by_any == any_.end()) return nullptr;
  const bool is_named = by_any == any_.end() || (by_name != named.end() && (*by_name)->order_ < (*by_any)->order_);
  std::deque<TransferPtr>& from = is_named ? named : any_;
  const auto at = is_named ? by_name : by_any;
  const TransferPtr receive = std::move(*at);
  from.erase(at);
  return receive;
}

ArrivalPtr Matcher::first_arrival(const Transfer& receive) const {
  ArrivalPtr first;
  const auto look = [&](const Box& from) {
    for (const ArrivalPtr& arrival : from.unexpected) {
      if (!matches(receive, arrival->header)) continue;
      if (!first || arrival->order < first->order) first = arrival;
      return;
    }
  };
  if (receive.peer() != any_source) {
    look(box(receive.peer()));
  } else {
    std::for_each(boxes_.begin(), boxes_.end(), look);
  }
  return first;
}

void Matcher::join(const TransferPtr& receive, Arrival& arrival, bool was_there) {
  const bool fits = is_same_call(*receive, arrival.header) && receive->room_.size() == arrival.header.bytes;
  if (!receive->taking() && !fits) {
    receive->finish(Transfer::State::failed);
    throw mismatch(*receive, arrival);
  }
  receive->match(arrival.peer, arrival.header, arrival.sequence, was_there);
  arrival.receiver = receive;
  if (arrival.target == nullptr) arrival.target = receive->room_for(arrival.header.bytes);
  if (arrival.parts == 0) deliver(arrival);
}

void Matcher::complete(Arrival& arrival) {
  if (arrival.receiver) deliver(arrival);
}

void Matcher::deliver(Arrival& arrival) {
  Box& from = box(arrival.peer);
  if (arrival.buffer) {
    arrival.receiver->put(std::move(arrival.buffer));
    from.buffered -= arrival.header.bytes;
    let_in(from);
  }
  arrival.receiver->finish(Transfer::State::done);
  arrival.receiver.reset();
}

// Only the last message can be waiting in the stream, as its link is not read any further.
void Matcher::let_in(Box& from) {
  if (from.unexpected.empty()) return;
  Arrival& last = *from.unexpected.back();
  const std::size_t bytes = last.header.bytes;
  if (last.target != nullptr || last.parts == 0) return;
  if (from.buffered + bytes > buffered_limit && from.posted.empty() && any_.empty()) return;
  // Not filled with zeros: the pages are taken as the bytes come, whatever the header announces.
  last.buffer.reset(new (std::nothrow) std::byte[bytes]);
  last.target = last.buffer.get();
  if (last.buffer) from.buffered += bytes;
}

// For example, a rank with another root sends where no rank receives.
void Matcher::compare(const Arrival& arrival) const {
  const Header& header = arrival.header;
  if (header.purpose != Purpose::collective) return;
  const Begun& own = begun_[header.tag % begun_.size()];
  if (own.sequence == header.tag && own.call.fingerprint() != header.call.fingerprint()) {
    throw mismatch({Purpose::collective, own.sequence, own.call}, arrival);
  }
  for (const TransferPtr& receive : box(arrival.peer).posted) {
    if (has_passed(header, *receive)) throw mismatch(receive->label(), arrival);
  }
}

// Messages arrive in the order of their collectives.
void Matcher::demand_coming(const Transfer& receive) const {
  if (receive.peer() == any_source) return;
  for (const ArrivalPtr& arrival : box(receive.peer()).unexpected) {
    if (has_passed(arrival->header, receive)) throw mismatch(receive.label(), *arrival);
  }
}

Failure Matcher::mismatch(const Label& own, const Arrival& arrival) const {
  Failure found;
  found.kind = FailureKind::mismatch;
  found.rank = arrival.peer;
  found.reporter = rank_;
  found.op = own.call.kind;
  found.sequence = own.sequence();
  found.own = own.call;
  found.other = arrival.header.call;
  return found;
}

Failure Matcher::mismatch(const Transfer& receive, const Arrival& arrival) const {
  Failure found = mismatch(receive.label(), arrival);
  if (is_same_call(receive, arrival.header)) {
    found.own = found.own.of_size(receive.room_.size());
    found.other = found.other.of_size(arrival.header.bytes);
  }
  return found;
}

const Transfer* Matcher::waiting_for(int peer) const {
  if (wants_by_name(peer)) return box(peer).posted.front().get();
  return any_.empty() ? nullptr : any_.front().get();
}

void Matcher::fail_all() {
  const auto fail = [](std::deque<TransferPtr>& posted) {
    for (const TransferPtr& receive : posted) receive->finish(Transfer::State::failed);
    posted.clear();
  };
  fail(any_);
  for (Box& each : boxes_) {
    fail(each.posted);
    each.unexpected.clear();
  }
}

}  // namespace torsh
