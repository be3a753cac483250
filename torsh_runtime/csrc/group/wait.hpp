// Records the wait for an operation that runs on the queue.
#pragma once

#include <cstdint>
#include <exception>

#include "common/recorder.hpp"
#include "group/group.hpp"

namespace torsh {

class Group::Wait {
 public:
  explicit Wait(Group& group) : recorder_(group.channel_.recorder()), in_background_(group.queue_.is_here()) {}
  ~Wait() { recorded_.leave(std::uncaught_exceptions() > unwinding_); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  void enter(const Job& job) { enter(job.sequence(), job.entry(), -1); }
  void enter(const Transfer& transfer) { enter(transfer.sequence(), transfer.entry(), transfer.peer()); }
  // What it waits for may be known only now.
  void tell(const Job& job) { tell(job.sequence(), job.entry(), -1); }
  void tell(const Transfer& transfer) { tell(transfer.sequence(), transfer.entry(), transfer.peer()); }

 private:
  static std::uint64_t call(int peer) {
    return noted_wait | static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32;
  }
  void enter(std::uint64_t sequence, std::uint64_t entry, int peer) {
    recorded_.enter(recorder_, {call(peer), entry, 0, sequence, Path::unknown, in_background_});
    sequence_ = sequence;
  }
  void tell(std::uint64_t sequence, std::uint64_t entry, int peer) {
    if (sequence == sequence_) return;
    recorded_.tell(call(peer), entry, 0, sequence);
    sequence_ = sequence;
  }

  const Recorder& recorder_;
  const bool in_background_;
  const int unwinding_ = std::uncaught_exceptions();
  Recorded recorded_;
  std::uint64_t sequence_ = 0;
};

}  // namespace torsh
