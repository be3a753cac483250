// A process's end of all connections of remote calls, by the leader/followers pattern.
//
// One thread at a time leads: it moves bytes, and passes messages to the threads that wait for them. A thread that
// waits for a result leads while no other does. So does a serving thread until it has a request, which it carries out
// itself, so no thread is woken for it. While no thread leads, serving threads stand by, asleep in the kernel, and
// one of them leads when something comes. If threads return to lead or serve many times in a tick, those that stand
// by are woken only by the tick, to check whether one still does. If requests come while a thread waits for a call,
// that thread leaves leading to the serving threads, until they have something for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "rpc/connection.hpp"
#include "transport/descriptor.hpp"
#include "transport/tcp/epoll.hpp"

namespace torsh::rpc {

// The connection of a call, or of a frame to be sent, has ended; what() says why.
class Ended : public std::exception {
 public:
  explicit Ended(std::string reason) : reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  std::string reason_;
};

// A call of this process. It changes under the hub's lock, and not once it is over.
struct Call {
  enum class State { pending, done, failed };

  std::uint64_t number = 0, connection = 0;
  std::size_t bytes = 0;  // counted as under way
  double deadline = 0;
  std::atomic<State> state{State::pending};
  MessagePtr reply;    // of one that is done
  std::string reason;  // of one that has failed: why the connection has ended; "" if the deadline has passed
  bool is_announced = false;  // next() is to give it when it is over
  std::condition_variable* waiter = nullptr;

  bool is_over() const { return state.load(std::memory_order_acquire) != State::pending; }
};
using CallPtr = std::shared_ptr<Call>;

// What a serving thread must do next.
struct Item {
  enum class What { stop, request, completed, ended };

  What what = What::stop;
  bool needs_thread = false;  // another thread must be started first
  MessagePtr request;
  CallPtr call;
  std::uint64_t connection = 0;
  std::string reason;  // why it has ended
};

struct HubSetup {
  std::size_t threads = 16;           // requests carried out at a time, not counting those that wait for calls of their own
  std::size_t bytes = 0;              // under way to a peer at a time
  double heartbeat = 30;              // seconds after which a silent machine counts as gone
  std::function<bool()> interrupted;  // asked by threads that wait for a call
};

// All may be called by any thread. In a fork of the process that made it all throw Ended.
class Hub {
 public:
  explicit Hub(HubSetup setup);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  // Takes over a connected socket; `pid` as Connection's. Throws std::system_error.
  std::uint64_t add(Descriptor socket, int pid, const Keys& keys);
  // Waits until `until` for `bytes` more to be allowed under way to the peer, as calls or as replies; returns whether
  // they are. Throws Ended, Interrupted.
  bool wait_for_room(std::uint64_t connection, bool is_reply, std::size_t bytes, double until, bool is_serving);
  // A frame, packed when it is known how the peer reads it.
  struct Content {
    FrameHeader header;
    std::span<const std::byte> pickle;
    std::span<const std::span<const std::byte>> buffers;
    std::shared_ptr<void> keep;  // owner of the memory
  };
  // Neither waits, but call() may read what has come. Both throw Ended. call() returns null if too much is under way
  // to the peer.
  CallPtr call(std::uint64_t connection, const Content& request, double deadline);
  void send(std::uint64_t connection, const Content& content);

  // Waits until the call is over or `until`; returns whether it is over. Throws Interrupted.
  bool wait(const CallPtr& call, double until, bool is_serving);
  // Has next() give it when it is over. False if it is over already.
  bool announce(const CallPtr& call);
  // Gives up a call; its reply is dropped.
  void forget(const CallPtr& call);
  std::uint64_t new_call() { return calls_made_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // How many calls are pending.
  std::size_t pending();
  // How many requests are being carried out, or wait for it.
  std::size_t serving();

  // Returns what a serving thread must do next, after it has done `done`; `stop` for a thread that has just started.
  Item next(Item::What done);
  // A serving thread waits for something else than a call in between.
  void begin_wait();
  void end_wait();

  // Ends a connection from this side.
  void end(std::uint64_t connection, const std::string& reason);
  // Tells all peers that this process leaves, as far as that is possible until then, and ends everything.
  void close(double until);
  // Owners of memory that is no longer read, to be released with the GIL held.
  std::vector<std::shared_ptr<void>> garbage();
  // Called without any lock held when there is much garbage and nothing else to do.
  std::function<void()> collect = [] {};

 private:
  using Lock = std::unique_lock<std::mutex>;
  static constexpr double short_request = 50e-6;  // seconds
  static constexpr std::size_t call_bytes = 512;  // that a call takes of this process's memory without its arguments
  struct Peer {
    Connection connection;
    std::deque<OutgoingMessagePtr> lent;  // written, and not yet told to be taken
    std::size_t calls = 0, replies = 0;  // bytes that are under way: not answered, not read
    bool is_fetching = false, has_left = false;
  };

  Lock access();
  void check_fork() const;
  Peer& peer(std::uint64_t connection);
  bool has_room(std::size_t under_way, std::size_t bytes) const;
  std::vector<std::uint64_t> connections() const;
  OutgoingMessagePtr pack(Lock& lock, std::uint64_t connection, const Content& content);
  template <typename Finished>
  void lead(Lock& lock, double until, bool may_sleep, Finished finished);
  bool poll(Lock& lock);
  bool handle(Lock& lock, const std::vector<int>& ready);
  void advance(Lock& lock, std::uint64_t connection);
  void push(Peer& peer);
  void watch(Peer& peer);
  void take(Lock& lock, Peer& peer, MessagePtr message);
  void arrive(Peer& peer, MessagePtr message);
  void note_taken(Peer& peer, const FrameHeader& taken);
  void tell_taken(Peer& peer, const Message& message);
  void fetch(Lock& lock, std::uint64_t connection, const MessagePtr& message);
  void release(Peer& peer, const OutgoingMessagePtr& outgoing);
  void throw_away(const OutgoingMessagePtr& outgoing);
  void complete(const CallPtr& call, Call::State state, MessagePtr reply, const std::string& reason);
  void fail(std::uint64_t connection, const std::string& reason);
  void expire(double time);
  double look_at_deadlines();
  bool sleep(Lock& lock, double until);
  bool may_spin(double still, double time);
  void spin(Lock& lock);
  bool leads() const { return leader_ == std::this_thread::get_id(); }
  bool has_leader() const { return leader_ != std::thread::id(); }
  bool is_left_to_servers() const { return servers_lead_ && standing_by_ != 0; }
  void rest(Lock& lock, Call& call, double until);

  // standby.cpp
  void pass_on();
  void note_turn();
  void look_in(Lock& lock);
  void arm();
  void disarm();
  void start_tick();
  void end_tick();
  bool stand_by(Lock& lock);
  bool take_in(Lock& lock, bool serves);
  void wake_server();
  void offer();

  // serving.cpp
  bool can_serve() const;
  bool is_attended() const;
  bool looks_first() const;
  bool is_spare() const;
  std::optional<Item> due();
  void tell_begun(const Message& request);
  Item handed_out(Item item);
  void enter_wait();

  static void wake(const Descriptor& event);
  static void drain(const Descriptor& event);

  const HubSetup setup_;
  const unsigned forks_;
  std::mutex mutex_;  // of all that follows
  std::atomic<int> lock_waiters_{0};
  std::atomic<std::uint64_t> calls_made_{0};
  tcp::Epoll inner_;  // the connections, and the leader's eventfd
  Descriptor outer_;  // watches inner_ while no thread leads, and the eventfd and ticks of threads that stand by
  Descriptor leader_wakeup_, standby_wakeup_, tick_;
  std::vector<int> ready_;
  const std::shared_ptr<Blocks> blocks_ = std::make_shared<Blocks>();
  std::unordered_map<std::uint64_t, Peer> peers_;
  std::unordered_map<int, std::uint64_t> by_descriptor_;
  std::map<std::uint64_t, std::string> ended_;  // why, of the last that there were
  std::unordered_map<std::uint64_t, CallPtr> calls_;
  std::list<std::condition_variable*> resting_;  // threads that wait for calls and do not lead
  std::deque<MessagePtr> requests_;
  std::deque<Item> news_;
  std::vector<OutgoingMessagePtr> written_;
  std::vector<std::shared_ptr<void>> garbage_;
  std::atomic<std::size_t> garbage_bytes_{0}, garbage_items_{0};
  std::condition_variable room_;  // bytes are no longer under way
  std::uint64_t next_connection_ = 1;
  std::thread::id leader_;
  bool servers_lead_ = false;  // rather than threads that wait for calls
  bool leader_serves_ = false, armed_ = false, stopping_ = false;
  bool ticking_ = false;
  bool is_stuck_ = false;  // few requests were begun in the last tick, and more wait
  double looked_ = 0;      // when somebody looked last what has come
  std::uint64_t turns_ = 0, begun_ = 0;                // how often somebody led or called, and requests begun,
  std::uint64_t turns_at_tick_ = 0, begun_at_tick_ = 0;  // then, when the tick began
  struct Begun {
    std::uint64_t number;
    double time;
  };
  std::unordered_map<std::thread::id, Begun> last_begun_;  // by threads that serve
  double many_ = 0;                                    // when there were several calls or requests last
  double turned_ = 0;                                  // when somebody led or called last
  std::size_t announced_ = 0;                          // calls that are pending
  std::size_t standing_by_ = 0;            // threads that sleep in the kernel until there is something to do
  std::size_t idle_servers_ = 1;           // threads in next(), and such as are being started: the first one is
  std::size_t running_ = 0, waiting_ = 0;  // requests begun, and of their threads those that wait for something
  double next_deadline_ = 0;               // of the calls that are announced; 0: of none
  double wakes_at_ = 0;                    // when who sleeps in the kernel looks at deadlines
  std::uint64_t last_active_ = 0, frames_ = 0;  // the connection where something came last; how much has come in all
  double came_ = 0;  // when that was
  unsigned polls_ = 0;
  double asked_ = 0;  // when it was last asked whether there are processors to spin on,
  bool has_cpus_ = true;  // and what came of it
  double expired_ = 0;                     // when expire() last ran
};

// Leads until it is finished, or until `until`, or where it must not sleep until spinning makes no sense. The caller
// must have found that no thread leads.
template <typename Finished>
void Hub::lead(Lock& lock, double until, bool may_sleep, Finished finished) {
  leader_ = std::this_thread::get_id();
  disarm();
  double since = now();
  while (!finished() && !stopping_) {
    const double time = now();
    const bool spins = may_spin(time - since, time);
    if (!spins && !may_sleep) break;
    const bool moved = spins ? poll(lock) : sleep(lock, until);
    if (!leads()) return;  // it was busy with one connection for long
    if (moved) {
      since = now();
    } else if (time >= until) {
      break;
    } else if (spins) {
      spin(lock);
    }
  }
  leader_serves_ = false;
  leader_ = std::thread::id();
  pass_on();
}

}  // namespace torsh::rpc
