// Implements Messenger. One thread at a time, the driver, moves the bytes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "messages/link.hpp"
#include "messages/messenger.hpp"
#include "transport/tcp/epoll.hpp"
#include "transport/waiting.hpp"

namespace torsh {

class Engine {
 public:
  using Transfers = std::span<const TransferPtr>;

  explicit Engine(MessengerSetup setup);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void begin(const Label& label);
  TransferPtr send(int peer, const Label& label, std::span<const std::byte> data);
  TransferPtr receive(int peer, const Label& label, std::span<std::byte> room);
  TransferPtr await(int peer, const Label& label, Transfer::Kind kind);
  TransferPtr probe_now(int peer, const Label& label);
  void when_over(const TransferPtr& transfer, std::function<void()> then);
  void wait(Transfers transfers, double deadline, double timeout);
  bool wait_until(Transfers transfers, double until);
  void progress_in_background(Transfers transfers, double deadline, double timeout);
  std::vector<int> awaited(bool by_name);
  std::optional<Label> awaits(int peer);
  void alarm();
  void fail(const Failure& failure);
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Finished = std::function<bool()>;
  class Waiter;
  struct Turn;
  struct Unattended {
    TransferPtr transfer;
    double deadline, timeout;
  };
  // How long nothing has been sent or received.
  struct Stillness {
    double since = 0;
    Yields yields;
  };

  // drive.cpp
  void drive(Lock& lock, Turn& turn, double until, const Finished& finished);
  bool idle(Lock& lock, Turn& turn, Stillness& still, double until);
  bool polls_longer(Turn& turn, double time);
  bool spin(Lock& lock);
  bool sleep(Lock& lock, Turn& turn, double until);
  void yield_lock(Lock& lock);
  bool poll();
  bool advance(Link& link);
  void arm();
  bool is_busy(const Link& link) const;
  void note(Link& link);
  bool is_crowded();

  // engine.cpp
  Lock access();
  Link& link_to(int peer);
  TransferPtr posted(TransferPtr receive);
  void post(Lock& lock, const TransferPtr& receive);
  void record(Transfer& transfer, std::uint64_t sequence);
  void demand_alive(Lock& lock);
  void rest(Lock& lock, double until);
  void settle();
  static bool is_done(Transfers transfers);
  bool is_inside() const;
  void background();
  void drive_unattended(Lock& lock);
  void enforce_deadlines();

  // faults.cpp
  void look_around(Lock& lock);
  bool check(Lock& lock);
  std::optional<Failure> find_gone();
  bool is_cut_off(const Link& link);
  bool is_needed(const Link& link, PeerState peer_state) const;
  void die(const Failure& failure);
  void tell(Lock& lock);
  Failure late(Transfers transfers, double seconds) const;
  Failure failure(FailureKind kind, int culprit, const Transfer* during) const;
  void linger() const;
  void let_go();

  MessengerSetup setup_;
  const int rank_;
  const int process_;
  std::mutex mutex_;  // of all that follows
  std::atomic<int> lock_waiters_{0};  // threads that wait for the mutex
  tcp::Epoll watch_;
  std::vector<Link> links_;  // by rank
  Matcher matcher_;
  std::vector<Link*> busy_;  // links with something to write or read now
  std::vector<bool> listed_;  // there, by rank
  std::vector<std::uint64_t> sent_;  // messages that are no collective's, by rank
  std::optional<Failure> failure_;
  bool unreported_ = false;
  std::atomic<bool> alarmed_{false};  // a thread should check for failures at once
  bool eager_ = false;  // nothing has come for long, so read also what nobody has asked for
  std::vector<double> ended_;  // since when, by rank; 0 is not
  bool driving_ = false;
  int asleep_ = 0;  // threads that sleep in the kernel, to be woken
  int resting_ = 0;  // threads that leave the work to the driver
  Crowding crowding_;
  double looked_ = 0;  // last check for failures, or start of the first wait after a pause
  std::vector<std::thread::id> waiters_;
  std::condition_variable changed_;  // a transfer is over, or the driver or a waiting thread has left
  std::vector<Unattended> unattended_;
  std::condition_variable work_;  // for the background thread
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace torsh
