// One rank's end of a group: the ranks of its node by shared memory, the others by TCP.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/across/across.hpp"
#include "collectives/layout.hpp"
#include "group/queue.hpp"
#include "messages/messenger.hpp"
#include "transport/shm/channel.hpp"
#include "transport/tcp/control.hpp"

namespace torsh {

// Arguments of a group.
struct GroupSetup {
  Layout layout;
  shm::Setup node;                      // the ranks of this node
  std::vector<std::vector<Descriptor>> links;  // for each rank of another node its sockets: control, then data
  double heartbeat = 10;                // seconds after which a silent machine counts as lost
  across::Strategy strategy{};
  across::Limits limits;
  std::function<bool()> interrupted;
  std::vector<int> job_ranks;  // this group's ranks as ranks of the job; empty: the same
};

class Group {
 public:
  explicit Group(GroupSetup setup);
  ~Group() { close(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return layout_.rank; }
  int ranks() const { return ranks_; }
  bool in_node() const { return layout_.nodes.size() == 1; }
  shm::Channel& channel() { return channel_; }
  // The bytes of messages to a rank that can leave their sender before they are received; 0 if that is not known.
  std::size_t held_bytes() { return in_node() ? channel_.segment().ring_capacity() : 0; }
  // Memory for the current operation.
  Scratch& scratch() { return scratch_; }
  // The current operation's team, in a group of several nodes.
  across::Team& team();

  // The ranks' first operation. It also finds out whether they can read each other's memory, unless that is known.
  void handshake(double timeout, std::optional<bool> known_cross_memory = {});
  // Whether this process is a fork of the rank's.
  bool is_fork() const { return channel_.is_fork(); }
  // Whether the group has failed.
  bool failed() { return channel_.failed(); }

  // Runs the operation, on this thread unless earlier ones are queued. timeout in seconds. Throws Failure or
  // Interrupted.
  template <class Operation>
  void perform(const Call& call, const Operation& operation, double timeout) {
    if (queue_.idle()) return execute(call, operation, timeout, false);
    if (queue_.is_here()) return execute(call, operation, timeout, true);  // called from the function given to run()
    finish(start(call, operation, timeout));
  }

  // Whether the next operation can run at once although other ranks must not hold up the caller: all of them are
  // about to call it too. Waits for them for a short while, unless earlier such waits timed out. Returns false in a
  // group of several nodes.
  bool all_come();

  // Queues a function that performs several operations, and does not wait for it.
  JobPtr run(std::function<void()> body) {
    channel_.check_fork();
    JobPtr job;
    guarded([&] { job = queue_.submit(std::move(body)); });
    return job;
  }

  // Begins the operation and does not wait for it.
  template <class Operation>
  JobPtr start(const Call& call, const Operation& operation, double timeout) {
    return run([this, call, operation, timeout] { execute(call, operation, timeout, true); });
  }

  // Makes memory that all ranks of the node have mapped known to the collectives, for the lifetime of the group:
  // `bytes` of each rank, `stride` apart, from `base` on. All ranks must do so at the same time.
  void add_region(std::byte* base, std::size_t stride, std::size_t bytes, double timeout);

  // Messages to or from one rank (from any: any_source): as Messenger has them.
  TransferPtr send(int peer, const Label& label, Piece data);
  TransferPtr receive(int peer, const Label& label, Piece room);
  TransferPtr take(int peer, const Label& label);
  TransferPtr probe(int peer, const Label& label, bool only_now);
  void when_over(const TransferPtr& transfer, std::function<void()> then);
  // Waits until it is done. The timeout, in seconds, is the one of the deadline.
  void wait(const TransferPtr& transfer, double deadline, double timeout);
  // Waits and returns whether it was over in time; otherwise it continues. Throws Interrupted.
  bool wait_for(const JobPtr& job, double until);
  bool wait_for(const TransferPtr& transfer, double until);
  // Completes it though no thread waits.
  void go_on(const TransferPtr& transfer, double deadline, double timeout);

  // Ends every rank's pending and later operations and messages with FailureKind::aborted. Any thread.
  void abort();
  // Leaves the group; operations that are still running are aborted. Throws Failure if the function given to run()
  // calls it.
  void close();
  // Whether the caller runs in the function given to run().
  bool is_within_run() const { return queue_.is_here(); }

 private:
  // Records a wait for a queued operation.
  class Wait;

  template <class Operation>
  void execute(const Call& call, const Operation& operation, double timeout, bool background) {
    std::optional<shm::Channel::Operation> under_way;
    begin(under_way, call, timeout, background);
    if (background) queue_.note(channel_.sequence(), channel_.recorded().number());
    call_ = &call;
    guarded([&] { operation(*this); });
    channel_.succeed();
  }

  // A failure on any rank ends the group on all ranks, which all get the first cause. Current messages release their
  // buffers to the caller.
  template <class Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const Failure& failure) {
      if (failure.kind >= FailureKind::closed) throw;  // it concerns this call alone
      messages_->fail(failure);
      // The thread that found it may not have informed the ranks of this node yet, and nothing else must begin
      // before.
      channel_.check_abort();
      channel_.fail(judge(failure));
    } catch (...) {  // interrupted, or out of memory or threads
      channel_.abort();
      messages_->fail(channel_.failure(FailureKind::aborted, channel_.rank()));
      throw;
    }
  }

  // Like guard() for a message. A timeout that ended the group may be that of another message, or of another rank
  // that waited for this one. This thread knows what it waited for.
  template <class Body>
  void guarded_message(int peer, const Label& label, Body body) {
    try {
      guarded(body);
    } catch (Failure& failure) {
      if (failure.kind == FailureKind::timeout && label.sequence() == 0 && peer != any_source) {
        failure.op = label.call.kind;
        failure.sequence = 0;
        failure.missing = {peer};
      }
      throw;
    }
  }

  bool is_over(const TransferPtr& transfer, double until);
  void note_wait(const Transfer& transfer);
  Label labelled(const Label& label) const;
  void begin(std::optional<shm::Channel::Operation>& under_way, const Call& call, double timeout, bool background);
  void check_message(int peer, const Label& label);
  Idling idling() const;
  shm::Hooks hooks();
  std::unique_ptr<tcp::Control> control(GroupSetup& setup);
  std::unique_ptr<Messenger> messenger(GroupSetup& setup);
  void finish(const JobPtr& job);
  void let_end(const JobPtr& job);
  void take_news();
  void take_leave();
  void watch_neighbours();
  void check();
  void check_neighbours();
  PeerState peer_state(int peer);
  Failure judge(Failure failure);
  std::vector<int> absent_elsewhere(std::uint64_t sequence);
  int neighbour(int peer) const;

  const Layout layout_;
  const int ranks_;
  const std::function<bool()> interrupted_;
  const std::vector<int> job_ranks_;
  std::unique_ptr<tcp::Control> control_;  // to other nodes, if there are any
  shm::Channel channel_;
  std::unique_ptr<Messenger> messages_;
  Scratch scratch_;
  across::Team team_;
  const Call* call_ = nullptr;
  std::uint64_t regions_ = 0;  // ever added
  std::atomic<unsigned> vain_{0}, impatient_{0};  // consecutive waits that timed out; calls left that do not wait
  Queue queue_;
  std::mutex leaving_;  // of what follows
  std::optional<shm::LivenessMonitor::Subscription> liveness_;  // only in a group with other processes, until close()
};

}  // namespace torsh
