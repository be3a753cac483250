#include "scenes.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "collectives/in_node/exposure.hpp"
#include "common/clock.hpp"
#include "group/operations.hpp"
#include "transport/shm/cpu_cache.hpp"
#include "transport/shm/cpu_quota.hpp"
#include "transport/tcp/socket_stream.hpp"
#include "endings.hpp"
#include "lines.hpp"
#include "calls.hpp"
#include "pool.hpp"
#include "process.hpp"
#include "recorded.hpp"
#include "slots.hpp"
#include "robust_futexes.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

Call bytes_call(OpKind kind, std::size_t bytes) { return Call{.kind = kind, .dtype = DType::uint8}.of_size(bytes); }

// A message over two streams comes whole though its sender has gone when it is read, and though the
// receiver looks for more on the first stream, which has ended.
void last_words_over_two_streams() {
  constexpr std::size_t bytes = 300 << 10;
  std::atomic<bool> gone{false};
  World({.nodes = {1, 1}, .streams = 2}).run([&](Member& member) {
    std::vector<std::byte> data(bytes, std::byte{7}), more(bytes);
    if (member.rank == 0) {
      const Call call = bytes_call(OpKind::send, bytes);
      member.group.wait(member.group.send(1, {Purpose::user, 0, call}, {data.data(), bytes}), now() + patience, patience);
      member.group.close();
      gone = true;
      return;
    }
    while (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Call call = bytes_call(OpKind::recv, bytes);
    std::fill(data.begin(), data.end(), std::byte{0});
    const TransferPtr first = member.group.receive(0, {Purpose::user, 0, call}, {data.data(), bytes});
    const TransferPtr second = member.group.receive(0, {Purpose::user, 0, call}, {more.data(), bytes});
    member.group.wait(first, now() + patience, patience);
    if (data != std::vector<std::byte>(bytes, std::byte{7})) throw Wrong("the message is not what was sent");
    member.group.abort();
  });
}

std::uint64_t word_of(pid_t process, std::uint64_t* at) {
  std::uint64_t word = 0;
  const iovec own{&word, sizeof word}, other{at, sizeof word};
  if (process_vm_readv(process, &own, 1, &other, 1, 0) != sizeof word) throw Wrong("the process cannot be read");
  return word;
}

// Nothing is written into the memory of a process that has got the number of a rank that has ended. Needs
// root, to choose the number; without it the scene ends early.
void a_number_that_is_another_process_by_now() {
  World world({.nodes = {2}});
  world.give_process(1);
  const pid_t number = world.process(1);
  world.run([&](Member& member) {
    if (member.rank == 1) return;
    std::uint64_t target = 1;
    world.kill(1);
    const pid_t stranger = fork_as(number);
    if (stranger < 0) return;
    alignas(64) static std::byte data[shm::CrossMemory::piece_bytes]{};
    {
      in_node::Writing writing(member.group.channel(), reinterpret_cast<std::uint64_t>(&target), sizeof target);
      const std::size_t written = writing.copy(1, data);
      const std::uint64_t found = word_of(stranger, &target);
      kill(stranger, SIGKILL);
      waitpid(stranger, nullptr, 0);
      if (written != 0 || found != 1) throw Wrong("a stranger's memory was written to");
    }
  });
}

// A leader that dies when all ranks have come, but before it has released its members, is lost to them.
void a_leader_that_dies_before_it_releases() {
  World world({.nodes = {4}, .processors = 64, .tuning = {4 << 10, 4 << 10, 64 << 10, 2}});
  world.give_process(0);
  std::atomic<bool> over{false};
  world.run([&](Member& member) {
    shm::Segment& segment = member.group.channel().segment();
    const auto barrier = [&] { member.group.perform(Call{.kind = OpKind::barrier}, Barrier{}, patience); };
    if (member.rank == 2 || member.rank == 3) return barrier();
    if (member.rank == 1) {
      try {
        barrier();
      } catch (const Failure& failure) {
        over = true;
        if (failure.kind == FailureKind::peer_lost && failure.rank == 0) return;
        throw Wrong("the members learnt of another fault: " + describe(failure));
      }
      throw Wrong("nobody released the members");
    }
    std::uint32_t last = 0;
    for (const shm::Flag& flag : segment.flags(0)) last = std::max(last, flag.round.load());
    const auto flag_of = [&](int rank) -> shm::Flag& { return segment.flags(rank)[(last + 1) % shm::dedicated_flags]; };
    while (flag_of(1).round != last + 1 || flag_of(2).round != last + 1) std::this_thread::yield();
    flag_of(0).fingerprint.store(flag_of(2).fingerprint.load());
    flag_of(0).round = last + 1;
    world.kill(0);
    while (!over) std::this_thread::yield();
  });
}

// Where ranks share processors the last to come to a round wakes the others. Operations in which some wait for
// nobody do not make them lose count.
void the_last_one_opens_the_gate() {
  constexpr int ranks = 4, reductions = 11, barriers = 5;
  World world({.nodes = {ranks}, .processors = 64, .quota = 1, .tuning = {4 << 10, 4 << 10, 64 << 10, 32, 2}});
  world.run([&](Member& member) {
    std::vector<std::int32_t> data(200, 1);
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    const across::ReduceSpec sum{.type = DType::int32, .op = ReduceOp::sum, .factor = 1.0};
    for (int turn = 0; turn < reductions; ++turn) {
      for (const std::size_t count : {std::size_t{3}, data.size()}) {
        member.group.perform(Call{.kind = OpKind::reduce, .root = 0, .count = count}, Reduce{sum, bytes, count, 0}, patience);
      }
    }
    const auto& header = member.group.channel().segment().header();
    const std::uint32_t before = header.opened;
    for (int turn = 0; turn < barriers; ++turn) member.group.perform(Call{.kind = OpKind::barrier}, Barrier{}, patience);
    for (const double until = now() + 1; header.opened - before != barriers && now() < until;) std::this_thread::yield();
    if (header.opened - before != barriers) throw Wrong("the gate was not opened once for each barrier");
    if (header.arrivals != header.opened * ranks) throw Wrong("ranks have lost count of the rounds");
  });
}

// Ranks that wait for nobody may disagree and never meet again: who waits for one of them finds it.
void a_mismatch_that_nobody_waits_for() {
  World world({.nodes = {5}, .processors = 64, .quota = 1, .tuning = {4 << 10, 4 << 10, 64 << 10, 32, 2, 2}});
  world.run([&](Member& member) {
    std::array<std::int32_t, 40> data{};
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    if (member.rank != 3) {
      const Piece piece{bytes, sizeof data};
      member.group.perform(Call{.kind = OpKind::broadcast, .root = 1, .count = data.size()}, Broadcast{piece, 1}, patience);
      for (const double until = now() + patience / 2; !member.group.channel().failed() && now() < until;) std::this_thread::yield();
      if (!member.group.channel().failed()) throw Wrong("nobody found the mismatch");
      return;
    }
    const across::ReduceSpec sum{.type = DType::int32, .op = ReduceOp::sum, .factor = 1.0};
    try {
      member.group.perform(Call{.kind = OpKind::all_reduce, .count = data.size()}, AllReduce{sum, bytes, data.size()}, patience);
    } catch (const Failure& failure) {
      if (failure.kind == FailureKind::mismatch) return;
      throw Wrong("it was taken for " + describe(failure));
    }
    throw Wrong("ranks that called different things were content");
  });
}

// Where many share processors the root is far ahead of the others, and wakes them but now and then: nothing is
// overtaken, whoever the root is, and whatever comes between.
void bursts_of_broadcasts() {
  constexpr int ranks = 18, turns = 1500, reign = 170;
  World world({.nodes = {ranks}, .processors = 64, .quota = 1});
  world.run([&](Member& member) {
    for (std::int32_t turn = 0; turn < turns; ++turn) {
      const int root = turn / reign % ranks;
      std::array<std::int32_t, 40> data{};  // of which 48 bytes go with the flag
      const std::size_t count = turn % 3 == 0 ? data.size() : 5;
      if (member.rank == root) data.fill(turn);
      const Piece piece{reinterpret_cast<std::byte*>(data.data()), count * sizeof data[0]};
      member.group.perform(Call{.kind = OpKind::broadcast, .root = root, .count = count}, Broadcast{piece, root}, patience);
      if (data[0] != turn || data[count - 1] != turn) throw Wrong("a broadcast brought another one's data");
      if (turn % 400 == 399) member.group.perform(Call{.kind = OpKind::barrier}, Barrier{}, patience);
    }
  });
}

bool has_cpu_per_rank(Shape shape) {
  std::atomic<int> roomy{0};
  const int ranks = shape.ranks();
  World(std::move(shape)).run([&](Member& member) { roomy += member.group.channel().has_cpu_per_rank(); });
  if (roomy != 0 && roomy != ranks) throw Wrong("the ranks disagree about the processors that they have");
  return roomy != 0;
}

// Ranks spin only if they may use a processor each all the time.
void a_quota_of_processors() {
  if (!has_cpu_per_rank({.nodes = {3}, .processors = 8})) throw Wrong("three ranks have not enough of 8 processors");
  if (!has_cpu_per_rank({.nodes = {3}, .processors = 8, .quota = 3})) throw Wrong("three ranks have not enough of a quota of 3");
  if (has_cpu_per_rank({.nodes = {3}, .processors = 8, .quota = 2.9})) throw Wrong("three ranks have enough of a quota of 2.9");
}

// A tree of files like the kernel's, which goes with this.
class FakeFiles {
 public:
  FakeFiles() {
    std::string pattern = std::filesystem::temp_directory_path() / "torsh-cgroups-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) throw Wrong("no directory for files");
    root_ = pattern;
  }
  ~FakeFiles() { std::filesystem::remove_all(root_); }
  FakeFiles(const FakeFiles&) = delete;
  FakeFiles& operator=(const FakeFiles&) = delete;

  const std::string& root() const { return root_; }
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void expect(double cpus) const {
    const auto found = shm::find_cpu_quota(root_);
    if ((found ? found->cpus : 0) != cpus) throw Wrong("a quota of " + std::to_string(cpus) + " was not found");
    if (found && found->group == 0) throw Wrong("a quota has no group");
  }

 private:
  std::string root_;
};

void quotas_of_the_second_version() {
  const FakeFiles files;
  files.expect(0);
  files.write("/proc/self/cgroup", "0::/pod/worker\n");
  files.write("/proc/self/mountinfo", "1 0 0:1 / / rw - ext4 /dev/a rw\n30 23 0:26 / /cg rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
  files.write("/cg/pod/worker/cpu.max", "max 100000\n");
  files.expect(0);
  files.write("/cg/pod/cpu.max", "150000 100000\n");
  files.expect(1.5);
  files.write("/cg/pod/worker/cpu.max", "50000 100000\n");
  files.expect(0.5);
  files.write("/proc/self/cgroup", "0::/../elsewhere\n");  // seen from a container
  files.expect(0);
  files.write("/cg/cpu.max", "400000 100000\n");
  files.expect(4);
}

void quotas_of_the_first_version() {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/docker/abc\n0::/\n");
  files.write("/proc/self/mountinfo", "33 23 0:29 /docker/abc /cg/cpu rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n");
  files.write("/cg/cpu/cpu.cfs_quota_us", "-1\n");
  files.write("/cg/cpu/cpu.cfs_period_us", "50000\n");
  files.expect(0);
  files.write("/cg/cpu/cpu.cfs_quota_us", "125000\n");
  files.expect(2.5);
}

void caches_of_processors() {
  const FakeFiles files;
  const auto expect = [&](std::initializer_list<int> cpus, std::uint32_t number) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) CPU_SET(cpu, &set);
    if (shm::shared_cache(set, files.root()) != number) throw Wrong("expected cache " + std::to_string(number));
  };
  expect({9}, 0);
  files.write("/sys/devices/system/cpu/cpu9/cache/index0/shared_cpu_list", "9,73\n");
  files.write("/sys/devices/system/cpu/cpu9/cache/index3/shared_cpu_list", "is not looked for\n");
  files.write("/sys/devices/system/cpu/cpu9/cache/index1/shared_cpu_list", "8-15,72-79\n");
  expect({9}, 9);
  expect({9, 15, 72}, 9);
  expect({9, 16}, 0);
  files.write("/sys/devices/system/cpu/cpu9/cache/index1/shared_cpu_list", "nonsense-\n");
  expect({9}, 10);
  expect({9, 15}, 0);
  expect({}, 0);
}

int fan_in_of(Shape shape) {
  std::atomic<int> fan_in{0};
  World(std::move(shape)).run([&](Member& member) {
    for (int turn = 0; turn < 3; ++turn) member.group.perform(Call{.kind = OpKind::barrier}, Barrier{}, patience);
    fan_in = member.group.channel().fan_in();
  });
  return fan_in;
}

// The ranks of a leader do not straddle caches.
void ranks_of_one_cache_share_a_leader() {
  static_assert(shm::barrier_fan_in(64) == 8 && shm::barrier_fan_in(64, 32) == 8 && shm::barrier_fan_in(192, 8) == 16);
  static_assert(shm::barrier_fan_in(96, 24) == 8 && shm::barrier_fan_in(37) == 5 && shm::barrier_fan_in(33, 3) == 6);
  const shm::Tuning tuning{4 << 10, 4 << 10, 64 << 10, 2};
  if (fan_in_of({.nodes = {9}, .processors = 64, .near = 2, .tuning = tuning}) != 2) throw Wrong("a fan-in of two was expected");
  if (fan_in_of({.nodes = {8}, .processors = 64, .near = 4, .tuning = tuning}) != 2) throw Wrong("half a cache to a leader was expected");
  if (fan_in_of({.nodes = {9}, .processors = 64, .near = 9, .tuning = tuning}) != 3) throw Wrong("the square root of all was expected");
}

bool is_readable(const Stream& stream, int milliseconds) {
  pollfd watched{stream.descriptor(), POLLIN, 0};
  return ::poll(&watched, 1, milliseconds) == 1;
}

// Who sleeps until much has come is not woken by little, but by the rest, and by the end.
void a_stream_that_expects_much() {
  auto [near, far] = tcp_pair();
  tcp::SocketStream reader(std::move(near));
  auto writer = std::make_unique<tcp::SocketStream>(std::move(far));
  const std::vector<std::byte> data(1000);
  std::vector<std::byte> room(data.size());
  const auto write = [&](std::size_t bytes) { writer->write(std::span(data).first(bytes), {}); };
  int come = 0;
  reader.expect(data.size());
  write(10);
  for (const double until = now() + patience; come != 10 && now() < until;) ioctl(reader.descriptor(), FIONREAD, &come);
  if (come != 10 || is_readable(reader, 0)) throw Wrong("10 bytes wake a reader that expects 1000");
  write(990);
  if (!is_readable(reader, 1000 * static_cast<int>(patience))) throw Wrong("1000 bytes do not wake a reader that expects them");
  if (reader.read(room) != room.size()) throw Wrong("1000 bytes were to be read at once");
  reader.expect(1);
  write(1);
  if (!is_readable(reader, 1000 * static_cast<int>(patience))) throw Wrong("a byte does not wake a reader that expects one");
  reader.read(room);
  reader.expect(data.size());
  writer.reset();
  if (!is_readable(reader, 1000 * static_cast<int>(patience))) throw Wrong("an end does not wake a reader that expects more");
}

}  // namespace

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all = [] {
    std::vector<Scene> made{
        {"last words over two streams", last_words_over_two_streams},
        {"a number that is another process by now", a_number_that_is_another_process_by_now},
        {"a leader that dies before it releases", a_leader_that_dies_before_it_releases},
        {"lines that ranks fetch", check_lines},
        {"the last one opens the gate", the_last_one_opens_the_gate},
        {"a mismatch that nobody waits for", a_mismatch_that_nobody_waits_for},
        {"bursts of broadcasts", bursts_of_broadcasts},
        {"a quota of processors", a_quota_of_processors},
        {"quotas of the second version", quotas_of_the_second_version},
        {"quotas of the first version", quotas_of_the_first_version},
        {"caches of processors", caches_of_processors},
        {"ranks of one cache share a leader", ranks_of_one_cache_share_a_leader},
        {"a stream that expects much", a_stream_that_expects_much},
    };
    for (const Scene& each : pool_scenes()) made.push_back(each);
    for (const Scene& each : call_scenes()) made.push_back(each);
    for (const Scene& each : robust_futex_scenes()) made.push_back(each);
    for (const Scene& each : endings_scenes()) made.push_back(each);
    for (const Scene& each : slot_scenes()) made.push_back(each);
    for (const Scene& each : recorded_scenes()) made.push_back(each);
    return made;
  }();
  return all;
}

}  // namespace torsh::test
