#include "transport/forks.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace torsh {
namespace {

struct Sockets {
  std::mutex mutex;
  std::vector<int> numbers;
};

// Never destroyed: forks may come until the process ends.
Sockets& sockets() {
  static Sockets& all = *new Sockets;
  return all;
}

std::atomic<unsigned> forked{0};

void before_fork() { sockets().mutex.lock(); }
void in_parent() { sockets().mutex.unlock(); }

// Allocates and frees nothing: other threads of the parent may have been at it.
void in_fork() {
  ++forked;
  for (int& number : sockets().numbers) close(std::exchange(number, -1));
  sockets().mutex.unlock();
}

void register_handlers() {
  static const int registered = pthread_atfork(before_fork, in_parent, in_fork);
  (void)registered;
}

}  // namespace

unsigned fork_count() {
  register_handlers();
  return forked.load(std::memory_order_relaxed);
}

RankSocket::RankSocket(Descriptor socket) : socket_(std::move(socket)) {
  if (number() < 0) return;
  register_handlers();
  const std::lock_guard<std::mutex> alone(sockets().mutex);
  sockets().numbers.push_back(number());
}

RankSocket::~RankSocket() {
  if (number() < 0) return;
  const std::lock_guard<std::mutex> alone(sockets().mutex);
  std::vector<int>& numbers = sockets().numbers;
  const auto found = std::find(numbers.begin(), numbers.end(), number());
  if (found != numbers.end()) {
    numbers.erase(found);
  } else {
    socket_.release();  // this is a fork, which has closed it
  }
}

}  // namespace torsh
