#include "transport/tcp/epoll.hpp"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <system_error>

namespace torsh::tcp {

static_assert(Epoll::readable == EPOLLIN && Epoll::writable == EPOLLOUT);

void Epoll::set(int descriptor, unsigned events) {
  const auto at = static_cast<std::size_t>(descriptor);
  if (at >= events_.size()) events_.resize(at + 1);
  if (events_[at] == events) return;
  if (epoll_.number() < 0) epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (epoll_.number() < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  const int change = events == 0 ? EPOLL_CTL_DEL : events_[at] == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  epoll_event event{};
  event.events = events;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll_.number(), change, descriptor, &event) != 0 && events != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot watch a peer's connection");
  }
  events_[at] = events;
}

std::span<const int> Epoll::wait(std::vector<int>& ready, double seconds) const {
  std::array<epoll_event, 64> events;
  const int limit = static_cast<int>(std::ceil(std::fmax(seconds, 0) * 1000));
  const int count = epoll_wait(epoll_.number(), events.data(), static_cast<int>(events.size()), limit);
  ready.clear();
  for (int i = 0; i < count; ++i) ready.push_back(events[static_cast<std::size_t>(i)].data.fd);
  return ready;
}

}  // namespace torsh::tcp
