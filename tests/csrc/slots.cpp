#include "slots.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.hpp"
#include "rpc/slot_reader.hpp"
#include "rpc/slots.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

using rpc::Lease;
using rpc::News;
using rpc::SlotReader;
using rpc::Slots;

constexpr std::size_t bytes = 100000;

bool never() { return false; }

// Memory full of the version's last byte.
void publish(Slots& slots, std::uint64_t version, double seconds = 30) {
  const auto slot = slots.take(bytes, seconds, never);
  expect(slot.has_value(), "no slot came free");
  std::memset(slots.memory(*slot).get(), static_cast<int>(version & 0xff), bytes);
  slots.publish(*slot, version, bytes, 0);
}

bool is_whole(const Lease& lease) {
  const auto* const data = reinterpret_cast<const unsigned char*>(lease.data());
  for (std::size_t i = 0; i < bytes; i += 97) {
    if (data[i] != (lease.version() & 0xff)) return false;
  }
  return true;
}

std::unique_ptr<SlotReader> reader_of(const Slots& slots, const char* name) {
  return std::make_unique<SlotReader>(getpid(), slots.file(), slots.token(), name);
}

void readers_that_take_versions_as_they_come() {
  constexpr std::uint64_t last = 300;
  Slots slots;
  publish(slots, 1);
  std::atomic<bool> is_torn{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const auto reader = reader_of(slots, "thread");
      for (std::uint64_t seen = 0; seen < last;) {
        if (reader->wait(seen, 60, never) != News::newer) break;
        const auto lease = reader->hold();
        if (lease->version() <= seen || !is_whole(*lease)) is_torn = true;
        seen = lease->version();
      }
    });
  }
  for (std::uint64_t version = 2; version <= last; ++version) publish(slots, version, 60);
  for (std::thread& thread : threads) thread.join();
  expect(!is_torn, "a reader saw half of a version, or an earlier one");
  expect(slots.holders().empty(), "a version is held that nobody has");
}

void a_reader_that_holds_all_slots() {
  Slots slots;
  const auto reader = reader_of(slots, "greedy");
  std::vector<std::shared_ptr<Lease>> held;
  for (std::uint64_t version = 1; version <= rpc::most_slots; ++version) {
    publish(slots, version);
    held.push_back(reader->hold());
  }
  expect(reader->hold() == held.back(), "one version has two leases");
  expect(!slots.take(bytes, 0.05, never), "a slot was taken that is held");
  expect(slots.holders().size() == rpc::most_slots && slots.holders().front().name == "greedy", "holders are not named");
  std::thread release([&] { held.erase(held.begin()); });
  publish(slots, 100);
  release.join();
  for (const auto& lease : held) expect(is_whole(*lease), "a version was overwritten that is held");
  held.clear();
  publish(slots, 101);
  expect(slots.count() == 3, "slots are kept that nobody needs");
  std::thread stop([&] { slots.stop(); });
  expect(reader->wait(101, 60, never) == News::closed, "a reader waits for a writer that has stopped");
  stop.join();
}

void a_reader_that_dies_with_a_version() {
  Slots slots;
  publish(slots, 1);
  int told[2];
  expect(pipe(told) == 0, "no pipe");
  const pid_t child = fork();
  if (child == 0) {
    const auto reader = reader_of(slots, "victim");
    const auto lease = reader->hold();
    (void)!write(told[1], "x", 1);
    for (;;) pause();
  }
  char letter;
  expect(read(told[0], &letter, 1) == 1, "the child says nothing");
  close(told[0]);
  close(told[1]);
  publish(slots, 2);
  publish(slots, 3);
  expect(slots.count() == 3, "the version that is held was overwritten");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (std::uint64_t version = 4; version < 20; ++version) publish(slots, version);
  expect(slots.count() == 3, "a dead reader costs memory");
}

}  // namespace

std::vector<Scene> slot_scenes() {
  return {
      {"readers that take versions as they come", readers_that_take_versions_as_they_come},
      {"a reader that holds all slots", a_reader_that_holds_all_slots},
      {"a reader that dies with a version", a_reader_that_dies_with_a_version},
  };
}

}  // namespace torsh::test
