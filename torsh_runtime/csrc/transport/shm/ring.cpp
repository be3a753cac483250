#include "transport/shm/ring.hpp"

#include <algorithm>
#include <cstring>

#include "transport/shm/cpu.hpp"

namespace torsh::shm {
namespace {

// Longer copies are published in steps, so that both sides copy at the same time.
constexpr std::size_t step = 32 << 10;

void copy_in(std::byte* ring, std::size_t capacity, std::uint64_t position, const std::byte* from, std::size_t bytes) {
  const std::size_t at = position & (capacity - 1);
  const std::size_t straight = std::min(bytes, capacity - at);
  std::memcpy(ring + at, from, straight);
  std::memcpy(ring, from + straight, bytes - straight);
}

void copy_out(std::byte* to, const std::byte* ring, std::size_t capacity, std::uint64_t position, std::size_t bytes) {
  const std::size_t at = position & (capacity - 1);
  const std::size_t straight = std::min(bytes, capacity - at);
  std::memcpy(to, ring + at, straight);
  std::memcpy(to + straight, ring, bytes - straight);
}

}  // namespace

// Does not touch the rings, which would allocate pages of each.
RingStream::RingStream(RingMemory& out, RingMemory& in, std::size_t capacity, WakeupSocket& own, const WakeupState& peer)
    : out_(out), in_(in), capacity_(capacity), own_(own), peer_(peer) {}

std::size_t RingStream::write(std::span<const std::byte> first, std::span<const std::byte> second) {
  return_to_start(first.size() + second.size());
  std::size_t taken = append(first);
  if (taken == first.size()) taken += append(second);
  if (taken == 0) return 0;
  out_.written.cpu.store(static_cast<std::uint32_t>(current_cpu() + 1), std::memory_order_relaxed);
  out_.written.bytes.store(written_, std::memory_order_release);
  own_.wake(peer_);
  return taken;
}

// The reader has read all there was, so the bytes up to the ring's end are skipped.
void RingStream::return_to_start(std::size_t bytes) {
  const std::size_t at = written_ & (capacity_ - 1);
  if (at == 0 || at + std::min(bytes, capacity_) <= warm_bytes || free_bytes(capacity_) != capacity_) return;
  written_ += capacity_ - at;
  start_ = out_taken_ = written_;
  out_.written.start.store(start_, std::memory_order_relaxed);
}

// Publishes full steps only; the caller publishes the rest.
std::size_t RingStream::append(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t part = std::min(step, bytes.size() - done);
    const std::size_t now = std::min(part, free_bytes(part));
    if (now == 0) break;
    copy_in(out_.data(), capacity_, written_, bytes.data() + done, now);
    written_ += now;
    done += now;
    if (now == step) out_.written.bytes.store(written_, std::memory_order_release);
  }
  return done;
}

std::size_t RingStream::read(std::span<std::byte> room) {
  std::size_t done = 0;
  while (done < room.size()) {
    const std::size_t part = std::min(step, room.size() - done);
    const std::size_t now = std::min(part, waiting_bytes(part));
    if (now == 0) break;
    copy_out(room.data() + done, in_.data(), capacity_, taken_, now);
    taken_ += now;
    done += now;
    in_.taken.bytes.store(taken_, std::memory_order_release);
  }
  if (done != 0) own_.wake(peer_);  // the writer may have found the ring full just before
  return done;
}

std::size_t RingStream::free_bytes(std::size_t wanted) {
  if (capacity_ - (written_ - out_taken_) < wanted) {
    out_taken_ = std::max(start_, out_.taken.bytes.load(std::memory_order_acquire));
  }
  const std::uint64_t waiting = written_ - out_taken_;
  if (waiting > capacity_) throw StreamEnded("the ring in shared memory was overwritten");
  return capacity_ - waiting;
}

std::size_t RingStream::waiting_bytes(std::size_t wanted) {
  if (in_written_ - taken_ < wanted) {
    in_written_ = in_.written.bytes.load(std::memory_order_acquire);
    // An empty ring's start may be newer than what was loaded; that of one with bytes is not, as its writer waits.
    if (in_written_ != taken_) taken_ = std::max(taken_, in_.written.start.load(std::memory_order_relaxed));
  }
  const std::uint64_t waiting = in_written_ - taken_;
  if (waiting > capacity_) throw StreamEnded("the ring in shared memory was overwritten");
  return waiting;
}

int RingStream::peer_cpu() const { return static_cast<int>(in_.written.cpu.load(std::memory_order_relaxed)) - 1; }

}  // namespace torsh::shm
