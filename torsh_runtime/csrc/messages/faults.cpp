// Engine: detects that the group has failed, and ends what is pending.
#include <algorithm>
#include <chrono>

#include "common/clock.hpp"
#include "messages/turn.hpp"

namespace torsh {
namespace {

// Seconds by which the reason why a peer is gone may arrive later than the end of its stream.
constexpr double grace = 0.2;
constexpr double linger_seconds = 1;

}  // namespace

void Engine::look_around(Lock& lock) {
  alarmed_ = false;
  looked_ = now();
  if (!check(lock)) return;
  const std::optional<Failure> found = find_gone();
  if (found && check(lock)) die(*found);  // unless the peer has given a reason
}

// Returns false if the group has failed.
bool Engine::check(Lock& lock) {
  lock.unlock();
  try {
    setup_.check();
    lock.lock();
  } catch (const Failure& found) {
    lock.lock();
    die(found);
  } catch (...) {
    lock.lock();
    die(failure(FailureKind::aborted, rank_, nullptr));
    throw;
  }
  return !failure_;
}

// Finds a peer that is gone and still needed.
std::optional<Failure> Engine::find_gone() {
  for (const Link& link : links_) {
    const Transfer* pending = link.pending() != nullptr ? link.pending() : matcher_.waiting_for(link.peer());
    if (pending == nullptr || link.peer() == rank_ || !is_cut_off(link)) continue;
    const PeerState peer_state = setup_.peer_state(link.peer());
    if (!is_needed(link, peer_state)) continue;
    return failure(peer_state == PeerState::left ? FailureKind::peer_left : FailureKind::peer_lost, link.peer(), pending);
  }
  return std::nullopt;
}

bool Engine::is_cut_off(const Link& link) {
  const PeerState peer_state = setup_.peer_state(link.peer());
  double& since = ended_[static_cast<std::size_t>(link.peer())];
  if (link.end() == nullptr) return peer_state == PeerState::unreachable;
  if (since == 0) since = now();
  return peer_state != PeerState::present || now() - since >= grace;
}

// A receive from any source can do without peers that have left, as long as others have not.
bool Engine::is_needed(const Link& link, PeerState peer_state) const {
  if (link.pending() != nullptr || matcher_.wants_by_name(link.peer())) return true;
  if (peer_state != PeerState::left) return true;
  return std::all_of(links_.begin(), links_.end(),
                     [this](const Link& each) { return each.peer() == rank_ || each.end() != nullptr; });
}

// Fails everything pending, and wakes all waiting threads.
void Engine::die(const Failure& found) {
  if (failure_) return;
  failure_ = found;
  unreported_ = true;
  matcher_.fail_all();
  for (Link& link : links_) link.fail_all();
  busy_.clear();
  std::fill(listed_.begin(), listed_.end(), false);
  settle();
}

void Engine::tell(Lock& lock) {
  if (!unreported_) return;
  unreported_ = false;
  const Failure found = *failure_;
  lock.unlock();
  setup_.failed(found);
  lock.lock();
}

Failure Engine::late(Transfers transfers, double seconds) const {
  const auto is_pending = [](const TransferPtr& each) { return !each->over(); };
  const auto pending = std::find_if(transfers.begin(), transfers.end(), is_pending);
  Failure found = failure(FailureKind::timeout, rank_, pending == transfers.end() ? nullptr : pending->get());
  found.seconds = seconds;
  const auto is_missing = [&](int peer) {
    return std::any_of(transfers.begin(), transfers.end(), [&](const TransferPtr& each) {
      return !each->over() && (each->peer() == peer || each->peer() == any_source);
    });
  };
  for (const Link& link : links_) {
    if (link.peer() != rank_ && is_missing(link.peer())) found.missing.push_back(link.peer());
  }
  return found;
}

Failure Engine::failure(FailureKind kind, int culprit, const Transfer* during) const {
  Failure found;
  found.kind = kind;
  found.rank = culprit;
  found.reporter = rank_;
  if (during != nullptr) {
    found.op = during->label().call.kind;
    found.sequence = during->label().sequence();
  }
  return found;
}

// Waits for a short time until the peers no longer need this end of the links.
void Engine::linger() const {
  const double until = now() + linger_seconds;
  const auto is_through = [](const Link& link) { return link.end() != nullptr || link.is_through(); };
  while (!std::all_of(links_.begin(), links_.end(), is_through) && now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Removes the descriptors from epoll first, since a fork of this process may keep them open.
void Engine::let_go() {
  for (Link& link : links_) {
    for (std::size_t lane = 0; lane < link.lanes(); ++lane) {
      if (link.descriptor(lane) >= 0) watch_.set(link.descriptor(lane), 0);
    }
    link.close();
  }
}

}  // namespace torsh
