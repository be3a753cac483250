// Prints the nanoseconds that an operation takes more with a recorder that is off than without one: recorder.py
// compiles and runs it. What it does beside that is what every operation of a group does at the least: it takes a
// lock, and counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>

#include "common/recorder.hpp"

using namespace torsh;

namespace {

constexpr int turns = 20'000, rounds = 2'000;  // so short that some are disturbed by nobody

struct Channel {
  std::timed_mutex busy;
  Recorder recorder;
  Recorded recorded;
  Path path = Path::shared_memory;
  std::uint64_t sequence = 0, neighbours = 0;
};

void meet() { asm volatile("" ::: "memory"); }  // here the ranks wait for each other

[[gnu::noinline]] void without(Channel& channel, const Call& call) {
  channel.busy.lock();
  channel.sequence += call.count;
  meet();
  channel.busy.unlock();
}

[[gnu::noinline]] void with(Channel& channel, const Call& call) {
  channel.busy.lock();
  channel.sequence += call.count;
  channel.neighbours = 1;
  if (channel.recorder.is_on()) channel.recorded.enter(channel.recorder, Beginning::of(call, channel.sequence, channel.path, false));
  const int unwinding = channel.recorded.is_under_way() ? std::uncaught_exceptions() : 0;
  meet();
  if (channel.recorded.is_under_way()) channel.recorded.all_came();
  if (channel.recorded.is_under_way()) channel.recorded.leave(std::uncaught_exceptions() > unwinding);
  channel.busy.unlock();
}

template <typename Operation>
double nanoseconds_of(Operation operation, Channel& channel, const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int turn = 0; turn < turns; ++turn) operation(channel, call);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / turns;
}

}  // namespace

int main() {
  Channel channel;
  const Call call{.kind = OpKind::all_reduce, .dtype = DType::float64, .count = 1};
  double least_without = 1e9, least_with = 1e9;
  for (int round = 0; round < rounds; ++round) {
    least_without = std::min(least_without, nanoseconds_of(without, channel, call));
    least_with = std::min(least_with, nanoseconds_of(with, channel, call));
  }
  std::printf("%.3f\n", least_with - least_without);
}
