#include "rpc/hub.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <sys/eventfd.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/clock.hpp"
#include "common/failure.hpp"
#include "transport/forks.hpp"
#include "transport/tcp/socket_stream.hpp"

namespace torsh::rpc {
namespace {

constexpr std::size_t long_pickle = 64 << 10;
constexpr std::size_t most_ended = 1000;  // connections whose end can still be told

Descriptor checked(int number, const char* what) {
  if (number < 0) throw std::system_error(errno, std::generic_category(), what);
  return Descriptor(number);
}

}  // namespace

Hub::Hub(HubSetup setup)
    : setup_(std::move(setup)),
      forks_(fork_count()),
      outer_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      leader_wakeup_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      standby_wakeup_(checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      tick_(checked(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create")) {
  inner_.set(leader_wakeup_.number(), tcp::Epoll::readable);
  constexpr unsigned once = EPOLLIN | EPOLLET;
  for (const auto& [descriptor, events] : {std::pair(inner_.descriptor(), 0u), std::pair(standby_wakeup_.number(), once), std::pair(tick_.number(), once)}) {
    epoll_event event{};
    event.events = events;
    event.data.fd = descriptor;
    if (epoll_ctl(outer_.number(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
  }
}

Hub::~Hub() = default;

void Hub::check_fork() const {
  if (fork_count() != forks_) throw Ended("this process is a fork of the one that called init_rpc(), and has no part in its calls");
}

Hub::Lock Hub::access() {
  check_fork();
  lock_waiters_.fetch_add(1, std::memory_order_relaxed);
  Lock lock(mutex_);
  lock_waiters_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

Hub::Peer& Hub::peer(std::uint64_t connection) {
  const auto found = peers_.find(connection);
  if (found != peers_.end()) return found->second;
  const auto ended = ended_.find(connection);
  throw Ended(ended != ended_.end() ? ended->second : "the connection has ended");
}

std::uint64_t Hub::add(Descriptor socket, int pid, const Keys& keys) {
  tcp::prepare(socket.number(), setup_.heartbeat, tcp::Use::data);
  const int descriptor = socket.number();
  auto stream = std::make_unique<tcp::SocketStream>(std::move(socket));
  const Lock lock = access();
  if (stopping_) throw Ended("this process has left");
  const std::uint64_t id = next_connection_++;
  peers_.emplace(id, Peer{Connection(id, std::move(stream), pid, keys, blocks_), {}});
  by_descriptor_[descriptor] = id;
  inner_.set(descriptor, tcp::Epoll::readable);
  return id;
}

// The tag of a long pickle takes long; other threads continue meanwhile.
OutgoingMessagePtr Hub::pack(Lock& lock, std::uint64_t connection, const Content& content) {
  const Connection& to = peer(connection).connection;
  const bool may_lend = to.pid() != 0, is_long = content.pickle.size() > long_pickle;
  const SipKey key = to.keys().own;
  if (is_long) lock.unlock();
  OutgoingMessagePtr outgoing = Packing::pack(content.header, content.pickle, content.buffers, may_lend, key, content.keep);
  if (is_long) lock.lock();
  return outgoing;
}

// What is larger than that by itself need not wait for calls that take long and little.
bool Hub::has_room(std::size_t under_way, std::size_t bytes) const {
  if (under_way + bytes + call_bytes <= setup_.bytes) return true;
  return bytes + call_bytes > setup_.bytes && under_way <= setup_.bytes / 4;
}

bool Hub::wait_for_room(std::uint64_t connection, bool is_reply, std::size_t bytes, double until, bool is_serving) {
  Lock lock = access();
  const auto fits = [&] {
    const Peer& to = peer(connection);
    return has_room(is_reply ? to.replies : to.calls, bytes);
  };
  if (fits()) return true;
  if (is_serving) enter_wait();
  bool has_room = false;
  try {
    while (!(has_room = fits()) && now() < until) {
      const double nap = std::min(until, now() + 0.02);
      if (!has_leader()) {
        lead(lock, nap, true, [&] { return peers_.count(connection) == 0 || fits(); });
      } else {
        room_.wait_for(lock, std::chrono::duration<double>(std::max(nap - now(), 0.0)));
      }
      lock.unlock();
      const bool is_interrupted = setup_.interrupted();
      lock.lock();
      if (is_interrupted) throw Interrupted();
    }
  } catch (...) {
    if (is_serving) --waiting_;
    throw;
  }
  if (is_serving) --waiting_;
  return has_room;
}

CallPtr Hub::call(std::uint64_t connection, const Content& content, double deadline) {
  Lock lock = access();
  OutgoingMessagePtr request = pack(lock, connection, content);
  Peer& to = peer(connection);
  if (!has_room(to.calls, request->bytes)) return nullptr;
  auto call = std::make_shared<Call>();
  call->number = request->call;
  call->connection = connection;
  call->bytes = request->bytes + call_bytes;
  call->deadline = deadline;
  calls_.emplace(call->number, call);
  to.calls += call->bytes;
  to.connection.send(std::move(request));
  push(to);
  look_in(lock);
  return call;
}

void Hub::send(std::uint64_t connection, const Content& content) {
  Lock lock = access();
  OutgoingMessagePtr outgoing = pack(lock, connection, content);
  Peer& to = peer(connection);
  to.replies += outgoing->bytes;
  to.connection.send(std::move(outgoing));
  push(to);
}

bool Hub::wait(const CallPtr& call, double until, bool is_serving) {
  if (call->is_over()) return true;
  Lock lock = access();
  if (call->is_over()) return true;
  if (is_serving) enter_wait();
  bool is_interrupted = false, has_rested = false;
  while (!call->is_over() && !is_interrupted && !stopping_ && now() < until) {
    const double nap = std::min(until, now() + 0.02);
    if (!has_leader() && !is_left_to_servers()) {
      lead(lock, nap, true, [&] { return call->is_over() || is_left_to_servers(); });
    } else {
      rest(lock, *call, nap);
      has_rested = true;
    }
    if (call->is_over()) break;
    lock.unlock();
    is_interrupted = setup_.interrupted();
    lock.lock();
  }
  if (is_serving) --waiting_;
  if (has_rested && !has_leader()) pass_on();
  if (is_interrupted) throw Interrupted();
  return call->is_over();
}

// While another thread leads.
void Hub::rest(Lock& lock, Call& call, double until) {
  std::condition_variable changed;
  std::condition_variable* const before = std::exchange(call.waiter, &changed);
  resting_.push_back(&changed);
  changed.wait_for(lock, std::chrono::duration<double>(std::max(until - now(), 0.0)));
  resting_.remove(&changed);
  if (call.waiter == &changed) call.waiter = before;
}

bool Hub::announce(const CallPtr& call) {
  const Lock lock = access();
  if (call->is_over()) return false;
  call->is_announced = true;
  ++announced_;
  if (!has_leader() && standing_by_ != 0) arm();
  if (next_deadline_ == 0 || call->deadline < next_deadline_) next_deadline_ = call->deadline;
  if (call->deadline < wakes_at_) wake(has_leader() ? leader_wakeup_ : standby_wakeup_);
  return true;
}

void Hub::forget(const CallPtr& call) {
  if (call->is_over() || fork_count() != forks_) return;
  const Lock lock = access();
  if (!call->is_over()) complete(call, Call::State::failed, nullptr, "");
}

std::size_t Hub::pending() {
  const Lock lock = access();
  return calls_.size();
}

std::size_t Hub::serving() {
  const Lock lock = access();
  return running_ + requests_.size();
}

void Hub::complete(const CallPtr& call, Call::State state, MessagePtr reply, const std::string& reason) {
  calls_.erase(call->number);
  const auto found = peers_.find(call->connection);
  if (found != peers_.end()) {
    found->second.calls -= std::min(call->bytes, found->second.calls);
    room_.notify_all();
  }
  call->reply = std::move(reply);
  call->reason = reason;
  call->state.store(state, std::memory_order_release);
  if (call->waiter == nullptr && has_leader() && !leads()) wake(leader_wakeup_);  // it may wait for this one
  if (call->waiter != nullptr) {
    call->waiter->notify_all();
    if (leader_serves_) servers_lead_ = false;
  }
  if (!call->is_announced) return;
  --announced_;
  Item item;
  item.what = Item::What::completed;
  item.call = call;
  news_.push_back(std::move(item));
  wake_server();
}

void Hub::end(std::uint64_t connection, const std::string& reason) {
  const Lock lock = access();
  fail(connection, reason);
}

void Hub::fail(std::uint64_t connection, const std::string& reason) {
  const auto found = peers_.find(connection);
  if (found == peers_.end()) return;
  Peer& gone = found->second;
  const std::string said = gone.has_left ? "it has left" : reason;
  inner_.set(gone.connection.descriptor(), 0);
  by_descriptor_.erase(gone.connection.descriptor());
  std::vector<OutgoingMessagePtr> left = gone.connection.abandon();
  left.insert(left.end(), gone.lent.begin(), gone.lent.end());
  peers_.erase(found);  // the peer must see the end before it can read what was lent and is no longer there
  ended_[connection] = said;
  if (ended_.size() > most_ended) ended_.erase(ended_.begin());
  for (const OutgoingMessagePtr& outgoing : left) throw_away(outgoing);
  std::vector<CallPtr> failed;
  for (const auto& [number, call] : calls_) {
    if (call->connection == connection) failed.push_back(call);
  }
  for (const CallPtr& call : failed) complete(call, Call::State::failed, nullptr, said);
  requests_.erase(std::remove_if(requests_.begin(), requests_.end(), [&](const MessagePtr& each) { return each->connection == connection; }),
                  requests_.end());
  room_.notify_all();
  Item item;
  item.what = Item::What::ended;
  item.connection = connection;
  item.reason = said;
  news_.push_back(std::move(item));
  wake_server();
}

void Hub::expire(double time) {
  expired_ = time;
  next_deadline_ = 0;
  std::vector<CallPtr> late;
  for (const auto& [number, call] : calls_) {
    if (call->deadline <= time) {
      late.push_back(call);
    } else if (call->is_announced && (next_deadline_ == 0 || call->deadline < next_deadline_)) {
      next_deadline_ = call->deadline;
    }
  }
  for (const CallPtr& call : late) complete(call, Call::State::failed, nullptr, "");
}

void Hub::release(Peer& peer, const OutgoingMessagePtr& outgoing) {
  if (outgoing->kind != Kind::request) {
    peer.replies -= std::min(outgoing->bytes, peer.replies);
    room_.notify_all();
  }
  throw_away(outgoing);
}

void Hub::throw_away(const OutgoingMessagePtr& outgoing) {
  if (!outgoing->keep) return;
  garbage_.push_back(std::move(outgoing->keep));
  garbage_bytes_ += outgoing->bytes;
  ++garbage_items_;
}

std::vector<std::shared_ptr<void>> Hub::garbage() {
  if (garbage_items_ == 0 || fork_count() != forks_) return {};
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) return {};
  garbage_bytes_ = garbage_items_ = 0;
  return std::exchange(garbage_, {});
}

void Hub::close(double until) {
  Lock lock = access();
  for (const std::uint64_t id : connections()) {
    FrameHeader header;
    header.kind = Kind::goodbye;
    try {
      Peer& each = peer(id);
      each.connection.send(Packing::pack(header, {}, {}, false, {}, nullptr));
      push(each);
    } catch (const Ended&) {
      continue;
    }
  }
  const auto is_through = [this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const auto& each) {
      return each.second.lent.empty() && each.second.connection.is_through();
    });
  };
  while (!is_through() && now() < until) {
    if (!has_leader()) {
      lead(lock, std::min(until, now() + 0.002), true, is_through);
    } else {
      room_.wait_for(lock, std::chrono::milliseconds(2));
    }
  }
  stopping_ = true;
  for (const std::uint64_t id : connections()) fail(id, "this process has left");
  news_.clear();
  requests_.clear();
  wake(leader_wakeup_);
  wake(standby_wakeup_);
  for (std::condition_variable* each : resting_) each->notify_all();
}

std::vector<std::uint64_t> Hub::connections() const {
  std::vector<std::uint64_t> all;
  for (const auto& [id, peer] : peers_) all.push_back(id);
  return all;
}

}  // namespace torsh::rpc
