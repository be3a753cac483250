// The last operations of a worker, noted in memory that its agent owns and reads: see
// torsh_runtime/monitoring/layout.py for the layout and for how it is read. No other process writes these lines and
// the worker waits for none, so the notes survive whatever happens to it.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/prefetch.hpp"
#include "common/ticks.hpp"
#include "common/types.hpp"

namespace torsh {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free);

struct alignas(64) Entry {
  Word mark, call, count, group, place, entered, came, left;
};
static_assert(sizeof(Entry) == 64);

// Statistics of all operations of one group: number, bytes and times by kind and size, and a histogram of durations.
struct Tally {
  static constexpr std::size_t kinds = num_noted, sizes = 32, durations = 32;
  struct Cell {
    Word calls, bytes, ticks, waited;
  };

  Cell cells[kinds][sizes];
  Word took[kinds][durations];
};

// A worker's whole recording.
struct Recording {
  static constexpr std::size_t entries_held = 1024, notes_held = 4096, groups = 7;
  static constexpr int most_passed = 16;  // current operations skipped in a row
  static constexpr std::uint64_t first_look = 1 << 16, last_look = std::uint64_t{1} << 31;  // ticks between two looks at both clocks
  enum : std::uint64_t { failed, writing, inside, left };  // in an entry's mark

  alignas(64) Word begun;
  Word looks;  // odd while a thread writes the next four
  Word first_ticks, first_time, last_ticks, last_time;
  Word notes_begun, names_taken;
  Entry entries[entries_held];
  Word notes[notes_held][4], names[128][8], members[32][32];  // Python writes these: torsh_runtime/monitoring/notes.py
  Tally tallies[groups];

  // Call once, before anything else.
  void open() {
    look();
    first_ticks.store(last_ticks.load());
    first_time.store(last_time.load());
  }

  // Returns the number of an operation that begins, and claims its entry. Operations that are still running keep
  // theirs, however many have begun since.
  std::uint64_t claim() {
    std::uint64_t number = begun.fetch_add(1, std::memory_order_relaxed);
    for (int passed = 0; passed < most_passed && is_inside(entries[number % entries_held]); ++passed) {
      number = begun.fetch_add(1, std::memory_order_relaxed);
    }
    return number;
  }

  void look_if_due(std::uint64_t time) {
    const std::uint64_t last = last_ticks.load(std::memory_order_relaxed);
    const std::uint64_t span = (last - first_ticks.load(std::memory_order_relaxed)) / 8 + first_look;
    if (time > last + (span < last_look ? span : last_look)) look();
  }

 private:
  static bool is_inside(const Entry& entry) { return (entry.mark.load(std::memory_order_relaxed) & 3) == inside; }

  // Reads both clocks, unless another thread is doing so.
  void look() {
    std::uint64_t seen = looks.load(std::memory_order_relaxed);
    if (seen % 2 != 0 || !looks.compare_exchange_strong(seen, seen + 1)) return;
    const std::uint64_t before = ticks(), time = nanoseconds(), after = ticks();
    last_ticks.store(before + (after - before) / 2, std::memory_order_relaxed);
    last_time.store(time, std::memory_order_relaxed);
    looks.store(seen + 2, std::memory_order_release);
  }
};

#include "common/recorder_layout.inc"  // made of torsh_runtime/monitoring/layout.py

// What is known of an operation when it begins.
struct Beginning {
  std::uint64_t call;  // Call::summary(), or the like
  std::uint64_t count, bytes, sequence;
  Path path;
  bool in_background;

  static Beginning of(const Call& call, std::uint64_t sequence, Path path, bool in_background) {
    return {call.summary(), call.count, call.count * size_of(call.dtype), sequence, path, in_background};
  }
};

// One group's part of the recording.
class Recorder {
 public:
  Recorder() = default;
  // `recording` may be null to record nothing. `place` is the number of groups that the process had before.
  // `has_alone`: no other thread enters operations of the same kind of this group at the same time, except kinds
  // behind OpKind.
  Recorder(Recording* recording, std::size_t place, std::uint32_t group, std::uint32_t ranks, bool has_alone = true)
      : recording_(recording),
        tally_(recording ? &recording->tallies[place < last ? place : last] : nullptr),
        group_(group | static_cast<std::uint64_t>(ranks & 0xFFFFFF) << 32),
        is_shared_(place >= last || !has_alone) {}

  bool is_on() const { return recording_ != nullptr; }

 private:
  friend class Recorded;
  static constexpr std::size_t last = Recording::groups - 1;  // the tally of all groups from this one on

  Recording* recording_ = nullptr;
  Tally* tally_ = nullptr;
  std::uint64_t group_ = 0;
  bool is_shared_ = false;
};

// A running operation. From enter() to leave() it has an entry, if anything is recorded.
class Recorded {
 public:
  void enter(const Recorder& recorder, const Beginning& beginning) {
    if (!recorder.is_on()) return;
    recorder_ = &recorder;
    number_ = recorder.recording_->claim();
    Entry& entry = recorder.recording_->entries[number_ % Recording::entries_held];
    kind_ = beginning.call & 0xFF;
    bytes_ = beginning.bytes;
    came_ = 0;
    entered_ = ticks();
    entry.mark.store(mark(Recording::writing), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry.call.store(beginning.call, std::memory_order_relaxed);
    entry.count.store(beginning.count, std::memory_order_relaxed);
    entry.group.store(recorder.group_ | static_cast<std::uint64_t>(beginning.path) << 56 |
                          static_cast<std::uint64_t>(beginning.in_background) << 63,
                      std::memory_order_relaxed);
    entry.place.store(beginning.sequence, std::memory_order_relaxed);
    entry.entered.store(entered_, std::memory_order_relaxed);
    entry.came.store(0, std::memory_order_relaxed);
    entry.left.store(0, std::memory_order_relaxed);
    entry.mark.store(mark(Recording::inside), std::memory_order_release);
    entry_ = &entry;
    prefetch_for_write(reinterpret_cast<const std::byte*>(recorder.recording_->entries + (number_ + 1) % Recording::entries_held));
  }

  // 1 + its number; 0 if it is none.
  std::uint64_t number() const { return recorder_ != nullptr ? number_ + 1 : 0; }
  bool is_under_way() const { return entry_ != nullptr; }

  // All ranks of the group have entered; the first call counts. For a message, the other rank has.
  void all_came() {
    if (entry_ != nullptr && came_ == 0) all_came(ticks());
  }
  // Like all_came(), known at that time, or before this rank entered.
  void all_came(std::uint64_t time) {
    if (entry_ == nullptr || came_ != 0) return;
    came_ = time > entered_ ? time : entered_;
    if (is_own()) entry_->came.store(came_, std::memory_order_relaxed);
  }

  // Adds facts that were not known when it began.
  void tell(std::uint64_t call, std::uint64_t count, std::uint64_t bytes, std::uint64_t sequence) {
    if (entry_ == nullptr || !is_own()) return;
    bytes_ = bytes;
    entry_->mark.store(mark(Recording::writing), std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    entry_->call.store(call, std::memory_order_relaxed);
    entry_->count.store(count, std::memory_order_relaxed);
    entry_->place.store(sequence, std::memory_order_relaxed);
    entry_->mark.store(mark(Recording::inside), std::memory_order_release);
  }

  // Forgets an operation that was refused before it began.
  void cancel() {
    if (entry_ != nullptr && is_own()) entry_->mark.store(0, std::memory_order_relaxed);
    entry_ = nullptr;
  }

  // Adds its number only.
  void tell(std::uint64_t sequence) {
    if (entry_ != nullptr && is_own()) entry_->place.store(sequence, std::memory_order_relaxed);
  }

  void leave(bool has_failed) {
    if (entry_ == nullptr) return;
    const std::uint64_t time = ticks();
    if (is_own()) {
      entry_->left.store(time, std::memory_order_relaxed);
      entry_->mark.store(mark(has_failed ? Recording::failed : Recording::left), std::memory_order_release);
    }
    entry_ = nullptr;
    if (!has_failed) count(time - entered_);
    recorder_->recording_->look_if_due(time);
  }

 private:
  // No mark is 0, that of an entry that was never used.
  std::uint64_t mark(std::uint64_t state) const { return (number_ + 1) << 2 | state; }

  // With very many running at a time they may overwrite each other's entries.
  bool is_own() const { return entry_->mark.load(std::memory_order_relaxed) >> 2 == number_ + 1; }

  void count(std::uint64_t took) const {
    if (kind_ >= Tally::kinds) return;
    const bool is_shared = recorder_->is_shared_ || kind_ >= noted_wait;
    const auto add = [is_shared](Word& word, std::uint64_t value) {
      if (is_shared) word.fetch_add(value, std::memory_order_relaxed);
      else word.store(word.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
    };
    Tally::Cell& cell = recorder_->tally_->cells[kind_][width(bytes_, Tally::sizes)];
    add(cell.calls, 1);
    add(cell.bytes, bytes_);
    add(cell.ticks, took);
    if (came_ != 0) add(cell.waited, came_ - entered_);
    add(recorder_->tally_->took[kind_][width(took, Tally::durations)], 1);
  }

  static std::size_t width(std::uint64_t value, std::size_t limit) {
    const auto bits = static_cast<std::size_t>(std::bit_width(value));
    return bits < limit ? bits : limit - 1;
  }

  const Recorder* recorder_ = nullptr;  // null: it never began
  Entry* entry_ = nullptr;              // while it is under way
  std::uint64_t number_ = 0, kind_ = 0, bytes_ = 0, entered_ = 0, came_ = 0;
};

}  // namespace torsh
