#include "messages/engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "common/clock.hpp"
#include "common/threads.hpp"
#include "messages/turn.hpp"

namespace torsh {
Engine::Engine(MessengerSetup setup)
    : setup_(std::move(setup)),
      rank_(setup_.rank),
      process_(getpid()),
      matcher_(setup_.rank, static_cast<int>(setup_.streams.size())),
      listed_(setup_.streams.size()),
      sent_(setup_.streams.size()),
      ended_(setup_.streams.size()) {
  if (!setup_.wakeup) throw std::invalid_argument("a messenger needs a wakeup socket");
  for (std::size_t peer = 0; peer < setup_.streams.size(); ++peer) {
    const std::size_t lanes = setup_.streams[peer].size();
    const bool is_self = static_cast<int>(peer) == rank_;
    if ((lanes == 0) != is_self || lanes > Header::max_lanes) {
      throw std::invalid_argument("a messenger needs 1 to 255 streams to each other rank, and has " +
                                  std::to_string(lanes) + " to rank " + std::to_string(peer));
    }
    links_.emplace_back(static_cast<int>(peer), std::move(setup_.streams[peer]));
  }
}

// A fork of the rank's process has none of its threads, and leaves the rank's state alone.
Engine::~Engine() {
  if (getpid() == process_) {
    close();
  } else if (thread_.joinable()) {
    thread_.detach();
  }
}

void Engine::begin(const Label& label) {
  Lock lock = access();
  demand_alive(lock);
  try {
    matcher_.begin(label);
  } catch (const Failure& found) {
    die(found);
    demand_alive(lock);
  }
}

TransferPtr Engine::send(int peer, const Label& label, std::span<const std::byte> data) {
  const auto transfer = std::make_shared<Transfer>(peer, label, data);
  Lock lock = access();
  demand_alive(lock);
  Link& link = link_to(peer);
  if (label.purpose != Purpose::collective) record(*transfer, ++sent_[static_cast<std::size_t>(peer)]);
  link.send(transfer);
  link.push();
  if (link.end() != nullptr) alarmed_ = true;
  note(link);
  settle();
  return transfer;
}

TransferPtr Engine::receive(int peer, const Label& label, std::span<std::byte> room) {
  return posted(std::make_shared<Transfer>(peer, label, room));
}

TransferPtr Engine::await(int peer, const Label& label, Transfer::Kind kind) {
  return posted(std::make_shared<Transfer>(peer, label, kind));
}

TransferPtr Engine::posted(TransferPtr receive) {
  Lock lock = access();
  post(lock, receive);
  return receive;
}

void Engine::record(Transfer& transfer, std::uint64_t sequence) {
  if (!setup_.recorder.is_on()) return;
  const Label& label = transfer.label();
  const int peer = transfer.peer();
  const Path path = setup_.paths[static_cast<std::size_t>(peer == any_source ? rank_ : peer)];
  Beginning beginning = Beginning::of(label.call, sequence, path, label.awaited != Awaited::at_once);
  beginning.call = label.call.summary_to(peer);
  transfer.recorded_.enter(setup_.recorder, beginning);
  transfer.entry_.store(transfer.recorded_.number(), std::memory_order_relaxed);
  transfer.sequence_.store(sequence, std::memory_order_relaxed);
}

TransferPtr Engine::probe_now(int peer, const Label& label) {
  const auto transfer = std::make_shared<Transfer>(peer, label, Transfer::Kind::probe);
  Lock lock = access();
  post(lock, transfer);
  while (!transfer->over() && poll()) settle();
  // A program that polls with probes is also told why nothing will come.
  if (!transfer->over() && (alarmed_ || now() >= looked_ + nap)) look_around(lock);
  demand_alive(lock);
  if (transfer->over()) return transfer;
  matcher_.withdraw(transfer);
  return nullptr;
}

void Engine::post(Lock& lock, const TransferPtr& receive) {
  demand_alive(lock);
  if (receive->peer() != any_source) link_to(receive->peer());
  if (receive->label().purpose != Purpose::collective && !receive->probing()) record(*receive, 0);
  try {
    matcher_.post(receive);
  } catch (const Failure& found) {
    die(found);
    demand_alive(lock);
  } catch (...) {  // no memory for what comes
    receive->recorded_.leave(true);
    die(failure(FailureKind::aborted, rank_, receive.get()));
    tell(lock);
    throw;
  }
  if (receive->peer() != any_source) note(link_to(receive->peer()));
  settle();
}

void Engine::when_over(const TransferPtr& transfer, std::function<void()> then) {
  const Lock lock = access();
  if (transfer->over()) return then();
  transfer->then_.push_back(std::move(then));
}

void Engine::wait(Transfers transfers, double deadline, double timeout) {
  if (wait_until(transfers, deadline)) return;
  Lock lock = access();
  look_around(lock);  // another rank may know a better reason
  if (!failure_ && !is_done(transfers)) die(late(transfers, timeout));
  if (!is_done(transfers)) demand_alive(lock);
}

bool Engine::wait_until(Transfers transfers, double until) {
  std::size_t done = 0;
  const auto finished = [&] {
    while (done < transfers.size() && transfers[done]->done()) ++done;
    return done == transfers.size();
  };
  if (finished()) return true;
  Lock lock = access();
  if (is_inside()) throw bare(FailureKind::nested);
  const Waiter here(*this);
  while (!finished()) {
    demand_alive(lock);
    if (driving_) {
      rest(lock, until);
    } else {
      Turn turn(*this, false);
      drive(lock, turn, until, finished);
    }
    if (!failure_ && now() >= until) return finished();
  }
  return true;
}

bool Engine::is_done(Transfers transfers) {
  return std::all_of(transfers.begin(), transfers.end(), [](const TransferPtr& transfer) { return transfer->done(); });
}

bool Engine::is_inside() const {
  return std::find(waiters_.begin(), waiters_.end(), std::this_thread::get_id()) != waiters_.end();
}

// The driver holds the lock while it spins, and yields it to waiting threads.
Engine::Lock Engine::access() {
  Lock lock(mutex_, std::try_to_lock);
  if (lock) return lock;
  lock_waiters_.fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  lock_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

Link& Engine::link_to(int peer) {
  if (peer < 0 || peer >= static_cast<int>(links_.size()) || peer == rank_) {
    throw std::invalid_argument("messages go to and come from other ranks of the group, and " + std::to_string(peer) +
                                " is none of " + std::to_string(links_.size()));
  }
  return links_[static_cast<std::size_t>(peer)];
}

void Engine::demand_alive(Lock& lock) {
  if (!failure_) return;
  tell(lock);
  throw *failure_;
}

// Leaves the work to the driver, until its next check at most.
void Engine::rest(Lock& lock, double until) {
  ++resting_;
  const auto slept = changed_.wait_for(lock, std::chrono::duration<double>(std::clamp(until - now(), 0.0, nap)));
  --resting_;
  if (slept == std::cv_status::timeout) look_around(lock);
}

// Tells other threads that something has changed.
void Engine::settle() {
  if (resting_ != 0) changed_.notify_all();
  if (asleep_ != 0) setup_.wakeup->wake_own();
}

void Engine::progress_in_background(Transfers transfers, double deadline, double timeout) {
  Lock lock = access();
  demand_alive(lock);
  if (is_done(transfers)) return;
  for (const TransferPtr& transfer : transfers) unattended_.push_back({transfer, deadline, timeout});
  if (!thread_.joinable()) thread_ = start_thread([this] { background(); });
  work_.notify_one();
}

void Engine::background() {
  Lock lock = access();
  while (!closing_) {
    std::erase_if(unattended_, [](const Unattended& each) { return each.transfer->over(); });
    if (unattended_.empty()) {
      work_.wait(lock);
    } else if (driving_) {
      work_.wait_for(lock, std::chrono::duration<double>(nap));
    } else {
      drive_unattended(lock);
    }
    enforce_deadlines();
    if (unreported_) tell(lock);
  }
}

// No caller can get an exception here, so a failure ends everything pending.
void Engine::drive_unattended(Lock& lock) {
  const auto is_over = [](const Unattended& each) { return each.transfer->over(); };
  const auto finished = [&] { return std::all_of(unattended_.begin(), unattended_.end(), is_over); };
  try {
    Turn turn(*this, true);
    drive(lock, turn, now() + nap, finished);
  } catch (const std::exception&) {
    die(failure(FailureKind::aborted, rank_, nullptr));
  }
}

void Engine::enforce_deadlines() {
  const double time = now();
  for (const Unattended& each : unattended_) {
    if (!failure_ && time >= each.deadline && !each.transfer->over()) die(late({&each.transfer, 1}, each.timeout));
  }
}

std::vector<int> Engine::awaited(bool by_name) {
  const Lock lock = access();
  for (int i = 0; i < 2 && poll(); ++i) settle();  // more than a ring holds
  std::vector<int> peers;
  for (const Link& link : links_) {
    const bool any = !by_name && matcher_.wants_any() && link.peer() != rank_;
    if (any || link.pending() != nullptr || matcher_.wants_by_name(link.peer())) peers.push_back(link.peer());
  }
  return peers;
}

std::optional<Label> Engine::awaits(int peer) {
  const Lock lock = access();
  const Link& link = link_to(peer);
  const Transfer* pending = link.pending() != nullptr ? link.pending() : matcher_.waiting_for(peer);
  return pending != nullptr ? std::optional(pending->label()) : std::nullopt;
}

// The thread that has the lock will check. If a caller holds it for something else while others sleep, they are not
// woken; alarms are repeated.
void Engine::alarm() {
  alarmed_ = true;
  const Lock lock(mutex_, std::try_to_lock);
  if (lock) settle();
}

void Engine::fail(const Failure& failure) {
  Lock lock = access();
  die(failure);
  tell(lock);
}

void Engine::close() {
  if (getpid() != process_) return;
  Lock lock = access();
  closing_ = true;
  const bool is_sound = !failure_;
  die(bare(FailureKind::closed));
  unreported_ = false;
  work_.notify_all();
  std::thread thread = std::move(thread_);
  if (!is_inside()) {
    changed_.wait(lock, [this] { return waiters_.empty(); });
  }
  lock.unlock();
  if (thread.joinable()) thread.join();
  lock.lock();
  if (is_inside()) return;
  if (is_sound) linger();
  let_go();
}

}  // namespace torsh
