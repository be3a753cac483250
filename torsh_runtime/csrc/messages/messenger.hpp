// Messages between the ranks of a group, in any combination at a time: matched by sender, purpose
// and tag, in order. It knows streams and links, not what is behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/failure.hpp"
#include "common/recorder.hpp"
#include "common/types.hpp"
#include "messages/transfer.hpp"
#include "transport/shm/wakeup.hpp"
#include "transport/peer_state.hpp"
#include "transport/stream.hpp"

namespace torsh {

// What a waiting thread does before it sleeps in the kernel.
enum class Idling { spin, yield, sleep };

struct MessengerSetup {
  int rank = 0;
  // The streams to each rank: the same number of lanes at both ends; none for this rank.
  std::vector<std::vector<std::unique_ptr<Stream>>> streams;
  std::unique_ptr<shm::WakeupSocket> wakeup;
  // Called by the waiting thread whenever nothing more has come.
  std::function<Idling()> idling = [] { return Idling::yield; };
  // Whether a spinning thread keeps nobody else from running, and may continue.
  std::function<bool()> threads_have_cpus = [] { return false; };
  // When this is readable, `check` is called at once; -1 is none.
  int alarm = -1;
  // Called every 20 ms, and upon alarm(), by a waiting thread, without any lock held. Throws Failure or Interrupted
  // when the group has failed.
  std::function<void()> check = [] {};
  // The state of a peer whose stream has ended, or may have.
  std::function<PeerState(int peer)> peer_state = [](int) { return PeerState::present; };
  // Called once, by the thread that finds it, with the reason why the group failed; not after close().
  std::function<void(const Failure&)> failed = [](const Failure&) {};
  // Records messages that belong to no collective, with each rank's path; this rank's entry is for receives from any
  // source.
  Recorder recorder;
  std::vector<Path> paths;
};

class Engine;

// All may be called by any thread, several at a time. After a failure all pending transfers fail with it, later calls
// throw it again, and buffers are not touched any more.
class Messenger {
 public:
  // Throws std::system_error.
  explicit Messenger(MessengerSetup setup);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // Enters a collective. From now on, messages with its number and another call are a mismatch. Throws Failure.
  void begin(const Label& label);
  // Both begin at once and never block. A send is done when the streams have taken all its bytes, though the peer may
  // not have received them. The receiver must have room for exactly what is sent, and the same dtype (the user's) or
  // call (a collective's). Throw Failure, and std::invalid_argument if there is no such peer.
  TransferPtr send(int peer, const Label& label, std::span<const std::byte> data);
  TransferPtr receive(int peer, const Label& label, std::span<std::byte> room);
  // Receives a message of any size and dtype; memory is allocated when it comes.
  TransferPtr take(int peer, const Label& label);
  // Finds a message that has not been received, and leaves it: when one comes, or now (null if there is none).
  // Another thread may receive it first.
  TransferPtr probe(int peer, const Label& label);
  TransferPtr probe_now(int peer, const Label& label);

  // Waits until all of them are done. Throws Failure (peer_lost, mismatch, timeout, aborted …) or Interrupted; the
  // group has failed then. `deadline` as of now().
  void wait(std::span<const TransferPtr> transfers, double deadline, double timeout);
  // Waits until all are done or until `until`; returns whether they are. Otherwise they continue. Throws as wait()
  // does, except for the time.
  bool wait_until(std::span<const TransferPtr> transfers, double until);
  // Calls `then` once when the transfer is over, perhaps now. It runs on any thread with locks held, so it must be
  // quick.
  void when_over(const TransferPtr& transfer, std::function<void()> then);
  // Completes them though no thread waits; fails the group if they are not done by the deadline.
  void progress_in_background(std::span<const TransferPtr> transfers, double deadline, double timeout);

  // The peers that unfinished transfers wait for, after everything that has come was read. Asked after a peer has
  // died, the answer is final. A receive from any source waits for all peers; `by_name` leaves such receives out.
  std::vector<int> awaited(bool by_name = false);
  // The label of one of the unfinished transfers that wait for the peer.
  std::optional<Label> awaits(int peer);

  // Makes waiting threads check for failures at once. Any thread; does not block.
  void alarm();
  // Ends everything that is pending, on this rank.
  void fail(const Failure& failure);
  // Releases the streams, after threads that wait have left with FailureKind::closed.
  void close();

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace torsh
