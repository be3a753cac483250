// Hub: the threads that carry out requests.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/clock.hpp"
#include "rpc/hub.hpp"
#include "transport/waiting.hpp"

namespace torsh::rpc {
namespace {

constexpr double between_looks = 200e-6;  // seconds

}  // namespace

Item Hub::next(Item::What done) {
  Lock lock = access();
  if (done == Item::What::request) {
    --running_;
    is_stuck_ = false;
  }
  if (done != Item::What::stop) ++idle_servers_;
  bool is_warm = done == Item::What::request && !is_spare(), is_back = is_warm;
  if (done == Item::What::request && !is_warm) start_tick();
  while (true) {
    if (is_back && looks_first()) take_in(lock, true);
    if (is_back || !is_attended()) {
      if (std::optional<Item> item = due()) return handed_out(*std::move(item));
    }
    if (idle_servers_ > setup_.threads + 1) {
      --idle_servers_;
      last_begun_.erase(std::this_thread::get_id());
      return {};
    }
    if (is_warm && !has_leader()) {
      leader_serves_ = true;
      lead(lock, std::numeric_limits<double>::infinity(), false, [this] { return can_serve() || (!resting_.empty() && !servers_lead_); });
      is_warm = false;
      if (!has_leader() && !can_serve()) arm();
    } else {
      is_warm = is_back = stand_by(lock);
    }
  }
}

bool Hub::can_serve() const { return stopping_ || !news_.empty() || (!requests_.empty() && running_ < setup_.threads + waiting_); }

// Whether a thread that carries out a request is expected back soon for those that wait.
bool Hub::is_attended() const { return running_ > waiting_ && news_.empty() && !stopping_ && !is_stuck_; }

// Whether a thread that returns must read the answers that others wait for before it takes the next request.
bool Hub::looks_first() const { return !resting_.empty() && !has_leader() && now() > looked_ + between_looks; }

// Whether this thread's request was short, and another thread has begun one since. Threads that take turns at short
// requests only wait for the GIL.
bool Hub::is_spare() const {
  const auto own = last_begun_.find(std::this_thread::get_id());
  if (own == last_begun_.end() || running_ <= waiting_) return false;
  return own->second.number != begun_ && now() < own->second.time + short_request;
}

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
  last_begun_[std::this_thread::get_id()] = {++begun_, now()};
  if (item.request->is_large()) tell_begun(*item.request);
  return item;
}

// Notes that the arguments of the request are no longer under way.
void Hub::tell_begun(const Message& request) {
  try {
    tell_taken(peer(request.connection), request);
  } catch (const Ended&) {  // the caller has gone
    return;
  }
}

// Hands an item to this thread. One thread always stands by, and more of them take what is left unless this one is
// back soon.
Item Hub::handed_out(Item item) {
  --idle_servers_;
  if (item.what == Item::What::stop) {
    wake(standby_wakeup_);  // for the next thread
    return item;
  }
  if (idle_servers_ == 0) {
    item.needs_thread = true;
    ++idle_servers_;
  }
  if (can_serve()) offer();
  if (!has_leader()) pass_on();
  return item;
}

void Hub::enter_wait() {
  ++waiting_;
  if (can_serve()) offer();
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
