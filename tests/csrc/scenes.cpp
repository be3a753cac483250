#include "scenes.hpp"

#include <thread>

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

}  // namespace

const std::vector<Scene>& scenes() {
  static const std::vector<Scene> all{{"last words over two streams", last_words_over_two_streams}};
  return all;
}

}  // namespace torsh::test
