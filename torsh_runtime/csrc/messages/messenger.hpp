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
#include "transport/shm/bell.hpp"
#include "transport/standing.hpp"
#include "transport/stream.hpp"

namespace torsh {

// What a thread that waits does first, before it sleeps in the kernel.
enum class Idling { spin, yield, sleep };

struct MessengerSetup {
  int rank = 0;
  // By rank, what leads there: the same number of lanes at both ends; none for this rank.
  std::vector<std::vector<std::unique_ptr<Stream>>> streams;
  std::unique_ptr<shm::Bell> bell;
  // Asked by the thread that waits, whenever nothing more has come.
  std::function<Idling()> idling = [] { return Idling::yield; };
  // Whether who spins keeps nobody from running, and may go on.
  std::function<bool()> threads_have_cpus = [] { return false; };
  // When this is readable, `check` is called at once; -1 is none.
  int alarm = -1;
  // Called every 20 ms, and upon alarm(), by whoever waits, without any lock held: throws Failure or Interrupted when
  // the group is dead.
  std::function<void()> check = [] {};
  // Of a peer whose stream has ended, or may as well have.
  std::function<Standing(int peer)> standing = [](int) { return Standing::present; };
  // Told once, by whichever thread finds out, why the group is dead; not after close().
  std::function<void(const Failure&)> failed = [](const Failure&) {};
  // Where messages that are no collective's are noted, and by rank which way they go; in this rank's place, those from
  // any source.
  Recorder recorder;
  std::vector<Path> paths;
};

class Engine;

// All may be called by any thread, several at a time. After a failure all that is pending fails with
// it, and later calls throw it again; buffers are not touched any more then.
class Messenger {
 public:
  // Throws std::system_error.
  explicit Messenger(MessengerSetup setup);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // This rank is in a collective from now on, and takes its messages for disagreement if their call is
  // another. Throws Failure.
  void begin(const Label& label);
  // Both begin at once what can be begun, and never block. A send is done when all its bytes are
  // handed over: what a stream holds is, though its peer has not yet received it. The receiver must
  // have room for exactly what is sent, and the same dtype (the user's) or call (a collective's).
  // Throw Failure, and std::invalid_argument if there is no such peer.
  TransferPtr send(int peer, const Label& label, std::span<const std::byte> data);
  TransferPtr receive(int peer, const Label& label, std::span<std::byte> room);
  // The same of whatever size, and of whatever dtype; the room is made when it comes.
  TransferPtr take(int peer, const Label& label);
  // Finds a message that nobody has received yet, and leaves it there: now (null if there is none), or
  // when one comes. Another thread may be faster in receiving it.
  TransferPtr probe(int peer, const Label& label);
  TransferPtr probe_now(int peer, const Label& label);

  // Until all of them are done. Throws Failure (peer_lost, mismatch, timeout, aborted …) or
  // Interrupted; the group is dead then. `deadline` as of now().
  void wait(std::span<const TransferPtr> transfers, double deadline, double timeout);
  // Whether all of them are done, at `until` at the latest; false leaves them under way. Throws as
  // wait() does for other reasons than the time.
  bool wait_until(std::span<const TransferPtr> transfers, double until);
  // Calls it once when that is over, perhaps now: on any thread, with locks held, so it must be quick.
  void when_over(const TransferPtr& transfer, std::function<void()> then);
  // Sees to it that they get done though nobody waits; fails the group if not by the deadline.
  void progress_in_background(std::span<const TransferPtr> transfers, double deadline, double timeout);

  // The peers that unfinished transfers wait for, once everything that has come is taken in: asked
  // after a peer has died, the answer is final. Who receives from any source waits for all peers,
  // unless only those meant by name are asked for.
  std::vector<int> awaited(bool by_name = false);
  // What one of the unfinished transfers that wait for the peer is part of.
  std::optional<Label> awaits(int peer);

  // Whoever waits looks around at once. Any thread; does not block.
  void alarm();
  // Ends everything that is pending, on this rank.
  void fail(const Failure& failure);
  // Lets go of the streams, after threads that are inside have left with FailureKind::closed.
  void close();

 private:
  std::unique_ptr<Engine> engine_;
};

}  // namespace torsh
