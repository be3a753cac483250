#include "calls.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "rpc/hub.hpp"
#include "world.hpp"

namespace torsh::test {
namespace {

using rpc::CallPtr;
using rpc::FrameHeader;
using rpc::Hub;
using rpc::Item;
using rpc::Keys;
using rpc::Kind;
using rpc::Message;

constexpr Keys keys_of_first{{1, 2}, {3, 4}}, keys_of_second{{3, 4}, {1, 2}};
constexpr double patience = 60;

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string text_of(const Message& message) {
  return {reinterpret_cast<const char*>(message.pickle.block ? message.pickle.data() : nullptr), message.pickle.bytes};
}

std::pair<int, int> socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::system_error(errno, std::generic_category(), "socketpair");
  return {ends[0], ends[1]};
}

// A worker, whose threads answer each request.
class Worker {
 public:
  using Answer = std::function<std::string(Worker&, const Message&)>;

  Worker(std::size_t threads, Answer answer)
      : hub({threads, 64 << 20, 30, [] { return false; }}), answer_(std::move(answer)) {
    start();
  }
  ~Worker() {
    hub.close(now() + 1);
    while (true) {
      std::vector<std::thread> ended;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        ended.swap(threads_);
      }
      if (ended.empty()) return;
      for (std::thread& each : ended) each.join();
    }
  }

  CallPtr begin(std::uint64_t connection, const std::string& text, std::span<const std::span<const std::byte>> buffers = {},
                double seconds = patience) {
    FrameHeader header;
    header.kind = Kind::request;
    header.call = hub.new_call();
    header.left = seconds;
    const auto pickle = bytes_of(text);
    const CallPtr call = hub.call(connection, {header, pickle, buffers, nullptr}, now() + seconds);
    expect(call != nullptr, "there was no room for a call");
    return call;
  }

  std::string finish(const CallPtr& call, bool is_serving = false) {
    expect(hub.wait(call, now() + patience, is_serving), "a call was not answered");
    expect(call->reply != nullptr, "a call has failed");
    expect(call->reply->is_genuine(), "an answer has the wrong seal");
    return text_of(*call->reply);
  }

  Hub hub;
  std::atomic<int> ended{0};
  std::uint64_t connection = 0;

 private:
  void start() {
    const std::lock_guard<std::mutex> lock(mutex_);
    threads_.emplace_back([this] { serve(); });
  }

  void serve() {
    Item::What done = Item::What::stop;
    while (true) {
      Item item = hub.next(done);
      if (item.needs_thread) start();
      if (item.what == Item::What::stop) return;
      done = item.what;
      if (item.what == Item::What::ended) ++ended;
      if (item.request) reply(*item.request);
    }
  }

  void reply(const Message& request) {
    FrameHeader header;
    header.kind = Kind::result;
    header.call = request.header.call;
    try {
      const auto pickle = bytes_of(request.is_genuine() ? answer_(*this, request) : "forged");
      hub.send(request.connection, {header, pickle, {}, nullptr});
    } catch (const rpc::Ended&) {
      return;
    }
  }

  const Answer answer_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

// `pid`: of this process, if each reads the other's memory.
void link(Worker& first, Worker& second, int pid) {
  const auto [one, other] = socket_pair();
  first.connection = first.hub.add(Descriptor(one), pid, keys_of_first);
  second.connection = second.hub.add(Descriptor(other), pid, keys_of_second);
}

std::string sum(Worker&, const Message& request) {
  std::uint64_t total = 0;
  for (const rpc::Part& part : request.buffers) {
    for (std::size_t i = 0; i < part.bytes; ++i) total += static_cast<std::uint64_t>(part.data()[i]);
  }
  return text_of(request) + ":" + std::to_string(total);
}

// Several threads call at a time, both ways, with buffers of sizes that are copied, sent and lent.
void calls_of_many_threads(int pid) {
  Worker first(4, sum), second(2, sum);
  link(first, second, pid);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      Worker& own = caller % 2 == 0 ? first : second;
      for (int turn = 0; turn < 60; ++turn) {
        const auto size = static_cast<std::size_t>(1) << (turn % 19);
        const std::vector<std::byte> array(size, std::byte{3});
        const std::span<const std::byte> whole(array), part = whole.first(size / 2);
        const std::vector<std::span<const std::byte>> buffers{whole, part};
        const std::string name = std::to_string(caller) + "." + std::to_string(turn);
        try {
          const CallPtr call = own.begin(own.connection, name, buffers);
          wrong += own.finish(call) != name + ":" + std::to_string(3 * (size + size / 2));
        } catch (const std::exception&) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& each : callers) each.join();
  expect(wrong == 0, "an answer was wrong");
}

void sent() { calls_of_many_threads(0); }
void lent() { calls_of_many_threads(getpid()); }

// Each function calls the other worker's, deeper than there are threads.
void nested() {
  const auto deeper = [](Worker& own, const Message& request) -> std::string {
    const int depth = std::stoi(text_of(request));
    if (depth == 0) return "0";
    const CallPtr call = own.begin(own.connection, std::to_string(depth - 1));
    return std::to_string(std::stoi(own.finish(call, true)) + 1);
  };
  Worker first(1, deeper), second(1, deeper);
  link(first, second, 0);
  expect(first.finish(first.begin(first.connection, "40")) == "40", "calls were not nested");
}

// Bursts of short calls, both ways, in which some wait until a later one has been carried out.
void in_bursts() {
  constexpr int turns = 40, short_calls = 25;
  std::vector<std::atomic<bool>> released(2 * turns);
  const auto answer = [&released](Worker&, const Message& request) {
    const std::string text = text_of(request);
    if (text[0] == 's') return text;
    std::atomic<bool>& mark = released[std::stoul(text.substr(1))];
    if (text[0] == 'r') mark = true;
    while (!mark) usleep(50);
    return text;
  };
  Worker first(3, answer), second(3, answer);
  link(first, second, 0);
  std::atomic<int> wrong{0};
  const auto call = [&](Worker& own, int from) {
    try {
      for (int turn = 0; turn < turns; ++turn) {
        const std::string mark = std::to_string(from + turn);
        std::vector<std::pair<CallPtr, std::string>> calls;
        const auto begin = [&](const std::string& text) { calls.emplace_back(own.begin(own.connection, text), text); };
        for (int i = 0; i < short_calls; ++i) begin("s");
        begin("w" + mark);
        if (turn % 3 == 0) usleep(static_cast<unsigned>(100 * turn));
        for (int i = 0; i < short_calls; ++i) begin("s");
        begin("r" + mark);
        if (turn % 4 == 0) own.hub.announce(calls.back().first);
        for (const auto& [each, text] : calls) wrong += own.finish(each) != text;
      }
    } catch (const std::exception&) {
      ++wrong;
    }
  };
  std::thread other([&] { call(second, turns); });
  call(first, 0);
  other.join();
  expect(wrong == 0, "an answer was wrong or did not come");
}

// The end of one peer fails the calls to it and no others.
void lost() {
  Worker middle(2, sum), left(1, sum);
  auto right = std::make_unique<Worker>(1, [](Worker& own, const Message&) -> std::string {
    own.hub.end(own.connection, "the test ends it");
    return "";
  });
  link(middle, left, 0);
  const std::uint64_t to_left = middle.connection;
  link(middle, *right, 0);
  const CallPtr doomed = middle.begin(middle.connection, "x");
  expect(middle.hub.wait(doomed, now() + patience, false), "nobody told that the peer had gone");
  expect(doomed->reply == nullptr && !doomed->reason.empty(), "a lost call has no reason");
  expect(middle.finish(middle.begin(to_left, "y")) == "y:0", "another peer's call was lost");
  expect(middle.hub.pending() == 0, "a call is left");
}

// A deadline that passes while nobody waits is told.
void late() {
  std::atomic<bool> is_over{false};
  Worker first(1, sum), second(1, [&](Worker&, const Message&) -> std::string {
    while (!is_over) usleep(1000);
    return "late";
  });
  link(first, second, 0);
  const CallPtr call = first.begin(first.connection, "x", {}, 0.05);
  expect(first.hub.announce(call), "a call that is under way counts as over");
  for (int i = 0; i < 6000 && !call->is_over(); ++i) usleep(10000);
  is_over = true;
  expect(call->is_over() && call->reply == nullptr && call->reason.empty(), "a late call was not given up");
}

// What is no call, or comes a second time, ends the connection.
void hostile() {
  Worker worker(1, sum);
  const auto ends_it = [&](std::span<const std::byte> frames) {
    const auto [one, other] = socket_pair();
    const Descriptor stranger(other);
    worker.hub.add(Descriptor(one), 0, keys_of_first);
    const int before = worker.ended;
    expect(write(stranger.number(), frames.data(), frames.size()) == static_cast<ssize_t>(frames.size()), "write");
    for (int i = 0; i < 6000 && worker.ended == before; ++i) usleep(10000);
    return worker.ended != before;
  };
  const std::vector<std::byte> noise(200, std::byte{0x41});
  expect(ends_it(noise), "noise was taken for a call");
  FrameHeader header;
  header.kind = Kind::request;
  const auto outgoing = rpc::Packing::pack(header, bytes_of("x"), {}, false, keys_of_second.own, nullptr);
  outgoing->authenticate(keys_of_second.own, 0);
  std::vector<std::byte> twice = outgoing->head;
  twice.insert(twice.end(), outgoing->head.begin(), outgoing->head.end());
  expect(ends_it(twice), "a call was taken a second time");
  FrameHeader huge = header;
  huge.bytes = std::uint64_t{1} << 45;
  expect(ends_it(std::as_bytes(std::span(&huge, 1))), "a pickle of 32 TiB was waited for");
}

}  // namespace

std::vector<Scene> call_scenes() {
  return {{"calls with arrays that are sent", sent}, {"calls with arrays that are lent", lent},
          {"calls that are nested deeper than there are threads", nested}, {"bursts of calls of which some wait", in_bursts},
          {"a worker that is lost", lost},
          {"a call that is late", late}, {"frames of a stranger", hostile}};
}

}  // namespace torsh::test
