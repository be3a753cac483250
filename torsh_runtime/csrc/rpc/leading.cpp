// Hub: moves bytes, and decides which thread does so.
#include <algorithm>
#include <cerrno>
#include <cmath>

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.hpp"
#include "common/failure.hpp"
#include "rpc/hub.hpp"
#include "transport/shm/cpu.hpp"
#include "transport/waiting.hpp"

namespace torsh::rpc {
namespace {

constexpr double between_questions = 2e-3;  // seconds between two looks at whether others want to run, which take 10 us
constexpr unsigned polls_of_yield = 64;  // polls before a yield, should the peer be on this CPU
constexpr unsigned polls_of_all = 4;  // every fourth poll looks at all connections
constexpr double longest_sleep = 1;    // seconds, without a look at deadlines
constexpr std::size_t much_garbage = 1 << 20;
constexpr std::size_t long_fetch = 4 << 20;  // bytes; others do not wait for such a fetch

int cpus() {
  cpu_set_t set;
  return shm::allowed_cpus(set);
}

}  // namespace

// A thread that spins where others want to run gets their messages later than one that sleeps. That also holds where
// the peer must be woken, because the kernel may put it on this CPU.
bool Hub::may_spin(double still, double time) {
  if (still > longest_poll || time > came_ + longest_poll) return false;
  if (time > asked_ + between_questions) {
    asked_ = time;
    has_cpus_ = shm::threads_have_cpus(cpus());
  }
  return has_cpus_;
}

void Hub::spin(Lock& lock) {
  lock.unlock();
  spin_pause();
  if (polls_ % polls_of_yield == 0 || lock_waiters_.load(std::memory_order_relaxed) != 0) sched_yield();
  lock.lock();
}

// Moves what can be moved now; returns whether anything was. Mostly that is on the connection where something came
// last, and looking only there takes half the time.
bool Hub::poll(Lock& lock) {
  if (++polls_ % polls_of_all != 0) {
    const std::uint64_t before = frames_;
    const auto last = peers_.find(last_active_);
    if (last != peers_.end() && !last->second.is_fetching) advance(lock, last_active_);
    return frames_ != before;
  }
  inner_.wait(ready_, 0);
  if (ready_.empty()) return false;
  const std::vector<int> ready = ready_;
  return handle(lock, ready);
}

// Sleeps in the kernel.
bool Hub::sleep(Lock& lock, double until) {
  const double seconds = std::min(until - now(), look_at_deadlines());
  std::vector<int> ready;
  lock.unlock();
  if (garbage_bytes_ > much_garbage) collect();
  inner_.wait(ready, seconds);
  lock.lock();
  return handle(lock, ready);
}

// Fails late calls, and returns how many seconds may pass until the next look.
double Hub::look_at_deadlines() {
  const double time = now();
  if (time > expired_ + longest_sleep || (next_deadline_ != 0 && time >= next_deadline_)) expire(time);
  wakes_at_ = time + longest_sleep;
  if (next_deadline_ != 0) wakes_at_ = std::min(wakes_at_, next_deadline_);
  return std::max(wakes_at_ - time, 0.0);
}

bool Hub::handle(Lock& lock, const std::vector<int>& ready) {
  bool moved = false;
  for (const int descriptor : ready) {
    if (descriptor == leader_wakeup_.number()) {
      drain(leader_wakeup_);
      continue;
    }
    const auto found = by_descriptor_.find(descriptor);
    if (found == by_descriptor_.end()) continue;
    moved = true;
    advance(lock, found->second);
  }
  return moved;
}

void Hub::advance(Lock& lock, std::uint64_t connection) {
  try {
    while (true) {
      const auto found = peers_.find(connection);
      if (found == peers_.end() || found->second.is_fetching) return;
      if (found->second.connection.is_sending()) push(found->second);
      MessagePtr message = found->second.connection.pull();
      if (message == nullptr) return;
      take(lock, found->second, std::move(message));
      const auto still = peers_.find(connection);
      if (still == peers_.end() || !still->second.connection.may_have_more()) return;
    }
  } catch (const StreamEnded& ended) {
    fail(connection, ended.what());
  } catch (const Ended&) {
    return;
  }
}

void Hub::push(Peer& peer) {
  const std::uint64_t id = peer.connection.id();
  written_.clear();
  try {
    peer.connection.push(written_);
  } catch (const StreamEnded& ended) {
    fail(id, ended.what());
    throw Ended(ended_[id]);
  }
  for (OutgoingMessagePtr& outgoing : written_) {
    if (outgoing->is_lent) {
      peer.lent.push_back(std::move(outgoing));
    } else {
      release(peer, outgoing);
    }
  }
  watch(peer);
}

void Hub::watch(Peer& peer) {
  const unsigned events = (peer.is_fetching ? 0u : tcp::Epoll::readable) | (peer.connection.is_sending() ? tcp::Epoll::writable : 0u);
  inner_.set(peer.connection.descriptor(), events);
}

void Hub::take(Lock& lock, Peer& peer, MessagePtr message) {
  const FrameHeader& header = message->header;
  ++frames_;
  came_ = now();
  last_active_ = peer.connection.id();
  if (header.kind == Kind::taken) {
    note_taken(peer, header);
  } else if (header.kind == Kind::goodbye) {
    peer.has_left = true;
  } else if (std::any_of(message->table.begin(), message->table.end(), [](const TableEntry& each) { return each.address != 0; })) {
    fetch(lock, peer.connection.id(), message);
  } else {
    arrive(peer, std::move(message));
  }
}

// The lent memory is the sender's again. If the call was given up, there may be nothing to note.
void Hub::note_taken(Peer& peer, const FrameHeader& taken) {
  const auto is_it = [&taken](const OutgoingMessagePtr& each) { return each->call == taken.call && (each->kind == Kind::request) == (taken.of_request != 0); };
  const auto found = std::find_if(peer.lent.begin(), peer.lent.end(), is_it);
  if (found != peer.lent.end()) {
    const OutgoingMessagePtr outgoing = std::move(*found);
    peer.lent.erase(found);
    release(peer, outgoing);
  }
  const auto call = calls_.find(taken.call);
  if (taken.of_request == 0 || call == calls_.end() || call->second->connection != peer.connection.id()) return;
  const std::size_t read = call->second->bytes - std::min(call->second->bytes, call_bytes);
  peer.calls -= std::min(read, peer.calls);
  call->second->bytes -= read;
  room_.notify_all();
}

void Hub::tell_taken(Peer& peer, const Message& message) {
  FrameHeader header;
  header.kind = Kind::taken;
  header.call = message.header.call;
  header.of_request = message.header.kind == Kind::request;
  peer.connection.send(Packing::pack(header, {}, {}, false, {}, nullptr));
  push(peer);
}

// Others may lead meanwhile.
void Hub::fetch(Lock& lock, std::uint64_t connection, const MessagePtr& message) {
  Peer& from = peer(connection);
  from.is_fetching = true;
  watch(from);
  std::size_t bytes = 0;
  for (const TableEntry& entry : message->table) bytes += entry.address != 0 ? entry.bytes : 0;
  if (leads() && bytes >= long_fetch) {
    leader_serves_ = false;
    leader_ = std::thread::id();
    pass_on();
  }
  const int pid = from.connection.pid();
  std::string reason;
  lock.unlock();
  try {
    Connection::fetch(pid, *message);
  } catch (const StreamEnded& ended) {
    reason = ended.what();
  }
  lock.lock();
  Peer& still = peer(connection);
  still.is_fetching = false;
  if (reason.empty() && still.connection.is_hung_up()) reason = "it has closed the connection";
  if (!reason.empty()) throw StreamEnded(reason);
  if (message->header.kind != Kind::request) tell_taken(still, *message);
  arrive(still, message);
}

void Hub::arrive(Peer& peer, MessagePtr message) {
  if (message->header.kind == Kind::request) {
    requests_.push_back(std::move(message));
    if (!leader_serves_) servers_lead_ = true;
    offer();
    return;
  }
  const auto found = calls_.find(message->header.call);
  if (found == calls_.end() || found->second->connection != peer.connection.id()) return;  // it is late
  const CallPtr call = found->second;
  complete(call, Call::State::done, std::move(message), "");
}

void Hub::wake(const Descriptor& event) {
  const std::uint64_t once = 1;
  while (::write(event.number(), &once, sizeof once) < 0 && errno == EINTR) continue;
}

void Hub::drain(const Descriptor& event) {
  std::uint64_t count;
  while (::read(event.number(), &count, sizeof count) < 0 && errno == EINTR) continue;
}

}  // namespace torsh::rpc
