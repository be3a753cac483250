#include "scenes.hpp"

#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "collectives/in_node/exposure.hpp"
#include "common/clock.hpp"
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

// A process with this very number, which waits to be killed; -1 if this one may not choose numbers.
pid_t fork_as(pid_t number) {
  clone_args wanted{};
  wanted.exit_signal = SIGCHLD;
  wanted.set_tid = reinterpret_cast<std::uint64_t>(&number);
  wanted.set_tid_size = 1;
  const auto made = static_cast<pid_t>(syscall(SYS_clone3, &wanted, sizeof wanted));
  while (made == 0) pause();
  return made;
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
    alignas(64) static std::byte data[shm::Reach::piece_bytes]{};
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

}  // namespace

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all{
      {"last words over two streams", last_words_over_two_streams},
      {"a number that is another process by now", a_number_that_is_another_process_by_now},
  };
  return all;
}

}  // namespace torsh::test
