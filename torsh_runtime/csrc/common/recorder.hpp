// The last operations of a worker, noted in memory that its agent owns and reads: see
// torsh_runtime/monitoring/layout.py for the layout and for how it is read. No other process writes these
// lines, and none is waited for, so what was noted is there whatever becomes of the worker.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <exception>

#include "common/ticks.hpp"
#include "common/types.hpp"

namespace torsh {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free);

struct alignas(64) Entry {
  Word mark, call, count, group, place, entered, came, left;
};
static_assert(sizeof(Entry) == 64);

// Of all operations of one group: their number, bytes and times by kind and size, and how many took how long.
struct Tally {
  static constexpr std::size_t kinds = 13, sizes = 32, durations = 32;
  struct Cell {
    Word calls, bytes, ticks, waited;
  };

  Cell cells[kinds][sizes];
  Word took[kinds][durations];
};

// All that a worker has for it.
struct Recording {
  static constexpr std::size_t entries_held = 1024, groups = 7;
  static constexpr std::uint64_t first_look = 1 << 16, last_look = std::uint64_t{1} << 31;  // ticks between two looks at both clocks

  alignas(64) Word begun;
  Word looks;  // odd while somebody writes the next four
  Word first_ticks, first_time, last_ticks, last_time;
  Word notes_begun, names_taken;
  Entry entries[entries_held];
  Word notes[1024][4], names[128][8], members[32][32];  // Python writes these: torsh_runtime/monitoring/notes.py
  Tally tallies[groups];

  // Once, before anything else.
  void open() {
    look();
    first_ticks.store(last_ticks.load());
    first_time.store(last_time.load());
  }

  // Looks at both clocks, unless another thread does.
  void look() {
    std::uint64_t seen = looks.load(std::memory_order_relaxed);
    if (seen % 2 != 0 || !looks.compare_exchange_strong(seen, seen + 1)) return;
    const std::uint64_t before = ticks(), time = nanoseconds(), after = ticks();
    last_ticks.store(before + (after - before) / 2, std::memory_order_relaxed);
    last_time.store(time, std::memory_order_relaxed);
    looks.store(seen + 2, std::memory_order_release);
  }

  void look_if_due(std::uint64_t time) {
    const std::uint64_t last = last_ticks.load(std::memory_order_relaxed);
    const std::uint64_t span = (last - first_ticks.load(std::memory_order_relaxed)) / 8 + first_look;
    if (time > last + (span < last_look ? span : last_look)) look();
  }
};

// One group's part in it: its operations follow each other.
class Recorder {
 public:
  Recorder() = default;
  // Null: nothing is recorded.
  Recorder(Recording* recording, std::size_t group) : recording_(recording), tally_(recording ? &recording->tallies[group % Recording::groups] : nullptr) {}

  void enter(std::uint64_t sequence, const Call& call, std::uint32_t group, std::uint32_t ranks) {
    if (recording_ == nullptr) return;
    const std::uint64_t number = recording_->begun.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = recording_->entries[number % Recording::entries_held];
    unwinding_ = std::uncaught_exceptions();
    kind_ = static_cast<std::size_t>(call.kind);
    bytes_ = call.count * size_of(call.dtype);
    number_ = (number + 1) << 2;  // no mark is 0, that of an entry that was never used
    came_ = 0;
    entered_ = ticks();
    entry.mark.store(number_ | writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.call.store(call.summary(), std::memory_order_relaxed);
    entry.count.store(call.count, std::memory_order_relaxed);
    entry.group.store(group | static_cast<std::uint64_t>(ranks) << 32, std::memory_order_relaxed);
    entry.place.store(sequence, std::memory_order_relaxed);
    entry.entered.store(entered_, std::memory_order_relaxed);
    entry.came.store(0, std::memory_order_relaxed);
    entry.left.store(0, std::memory_order_relaxed);
    entry.mark.store(number_ | inside, std::memory_order_release);
    entry_ = &entry;
  }

  // All ranks of the group have entered; the first time counts.
  void all_came() {
    if (entry_ == nullptr || came_ != 0) return;
    came_ = ticks();
    if (is_own()) entry_->came.store(came_, std::memory_order_relaxed);
  }

  void leave() {
    if (entry_ == nullptr) return;
    const std::uint64_t time = ticks(), took = time - entered_;
    const bool has_failed = std::uncaught_exceptions() > unwinding_;
    if (is_own()) {
      entry_->left.store(time, std::memory_order_relaxed);
      entry_->mark.store(number_ | (has_failed ? failed : left), std::memory_order_release);
    }
    entry_ = nullptr;
    if (!has_failed) count(took);
    recording_->look_if_due(time);
  }

 private:
  enum : std::uint64_t { failed, writing, inside, left };

  // An operation that takes long may be overwritten by those of other groups.
  bool is_own() const { return entry_->mark.load(std::memory_order_relaxed) >> 2 == number_ >> 2; }

  static void add(Word& word, std::uint64_t value) {
    word.store(word.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }

  void count(std::uint64_t took) {
    if (kind_ >= Tally::kinds) return;
    Tally::Cell& cell = tally_->cells[kind_][width(bytes_, Tally::sizes)];
    add(cell.calls, 1);
    add(cell.bytes, bytes_);
    add(cell.ticks, took);
    if (came_ != 0) add(cell.waited, came_ - entered_);
    add(tally_->took[kind_][width(took, Tally::durations)], 1);
  }

  static std::size_t width(std::uint64_t value, std::size_t limit) {
    const auto bits = static_cast<std::size_t>(std::bit_width(value));
    return bits < limit ? bits : limit - 1;
  }

  Recording* recording_ = nullptr;
  Tally* tally_ = nullptr;
  Entry* entry_ = nullptr;  // of the operation under way
  std::uint64_t number_ = 0, bytes_ = 0, entered_ = 0, came_ = 0;
  std::size_t kind_ = 0;
  int unwinding_ = 0;
};

}  // namespace torsh
