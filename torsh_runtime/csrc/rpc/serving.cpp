// Hub: the threads that carry out requests.
#include <algorithm>
#include <cmath>
#include <limits>

#include <sys/epoll.h>

#include "common/clock.hpp"
#include "rpc/hub.hpp"
#include "transport/waiting.hpp"

namespace torsh::rpc {

Item Hub::next(Item::What done) {
  Lock lock = access();
  if (done == Item::What::request) --running_;
  if (done != Item::What::stop) ++idle_servers_;
  bool is_warm = done == Item::What::request;
  while (true) {
    if (std::optional<Item> item = due()) return handed_out(*std::move(item));
    if (idle_servers_ > setup_.threads + 1) {
      --idle_servers_;
      return {};
    }
    if (is_warm && !has_leader()) {
      leader_serves_ = true;
      lead(lock, std::numeric_limits<double>::infinity(), false, [this] { return can_serve() || (!resting_.empty() && !servers_lead_); });
      leader_serves_ = false;
      is_warm = false;
    } else {
      is_warm = stand_by(lock);
    }
  }
}

bool Hub::can_serve() const { return stopping_ || !news_.empty() || (!requests_.empty() && running_ - waiting_ < setup_.threads); }

std::optional<Item> Hub::due() {
  if (!can_serve()) return std::nullopt;
  Item item;
  if (stopping_) return item;
  if (!news_.empty()) {
    item = std::move(news_.front());
    news_.pop_front();
    return item;
  }
  item.what = Item::What::request;
  item.request = std::move(requests_.front());
  requests_.pop_front();
  ++running_;
  if (item.request->is_large()) tell_begun(*item.request);
  return item;
}

// Its arguments are no longer under way.
void Hub::tell_begun(const Message& request) {
  try {
    tell_taken(peer(request.connection), request);
  } catch (const Ended&) {  // the caller has gone
    return;
  }
}

// The thread leaves with it. One is always left that stands by, and more of them are woken for what is left.
Item Hub::handed_out(Item item) {
  --idle_servers_;
  if (item.what == Item::What::stop) {
    ring(standby_bell_);  // for the next thread
    return item;
  }
  if (idle_servers_ == 0) {
    item.needs_thread = true;
    ++idle_servers_;
  }
  if (can_serve()) wake_server();
  if (!has_leader()) pass_on();
  return item;
}

void Hub::wake_server() {
  if (leader_serves_ && leads()) return;
  if (standing_by_ != 0) ring(standby_bell_);
}

// Sleeps in the kernel until something comes that nobody else takes, or that this thread is wanted for. Several may: the
// kernel wakes one of them for each. Whether something has come on a connection.
bool Hub::stand_by(Lock& lock) {
  ++standing_by_;
  if (!has_leader()) arm();
  const double seconds = look_at_deadlines();
  epoll_event ready{};
  int count = 0;
  if (!can_serve()) {
    lock.unlock();
    if (garbage_items_ != 0) collect();
    count = epoll_wait(outer_.number(), &ready, 1, static_cast<int>(std::ceil(std::min(seconds, 1.0) * 1000)));
    lock.lock();
  }
  --standing_by_;
  if (count != 1) return false;
  if (ready.data.fd == standby_bell_.number()) {
    silence(standby_bell_);
    return false;
  }
  armed_ = false;
  if (has_leader()) return false;
  take_in(lock);
  return true;
}

// What is there, once.
void Hub::take_in(Lock& lock) {
  leader_ = std::this_thread::get_id();
  leader_serves_ = true;
  inner_.wait(ready_, 0);
  const std::vector<int> ready = ready_;
  handle(lock, ready);
  leader_serves_ = false;
  if (leads()) leader_ = std::thread::id();
}

void Hub::enter_wait() {
  ++waiting_;
  if (can_serve()) wake_server();
}

void Hub::begin_wait() {
  const Lock lock = access();
  enter_wait();
}

void Hub::end_wait() {
  const Lock lock = access();
  --waiting_;
}

}  // namespace torsh::rpc
