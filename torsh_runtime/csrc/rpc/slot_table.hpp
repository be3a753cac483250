// The table that a writer shares with its readers: which slot holds the newest version, and which readers hold which
// slot.
//
// A slot is memory for one version. A reader that wants the newest one takes a lease: it writes into the lease which
// slot it is about to read, and then checks whether that is still the newest. The writer first makes another version
// the newest, then looks at the leases, and overwrites a slot only if no lease has it. All four steps are
// sequentially consistent, so one of the two sees the other, and a held slot is never overwritten (hazard pointers,
// Michael, 2004).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace torsh::rpc {

constexpr std::size_t most_slots = 8;
constexpr std::size_t most_leases = 1024;

using Token = std::array<std::uint64_t, 2>;

// A version and the slot that holds it, as one word. 0 is none.
struct Held {
  std::uint64_t word = 0;

  static Held of(std::uint64_t version, std::size_t slot) { return {version << 8 | (slot + 1)}; }
  explicit operator bool() const { return word != 0; }
  std::uint64_t version() const { return word >> 8; }
  std::size_t slot() const { return (word & 0xff) - 1; }
};

// A process of this machine as one word, different from any later process with the same PID. 0 is none.
struct ProcessId {
  std::uint64_t word = 0;

  static ProcessId own();
  int pid() const { return static_cast<int>(word & ((std::uint64_t{1} << pid_bits) - 1)); }
  // Whether it still runs its program.
  bool runs() const;

  static constexpr unsigned pid_bits = 22;  // the kernel's largest number is 2^22
};

struct alignas(64) SlotEntry {
  std::atomic<std::uint64_t> file;   // the writer's descriptor of the slot's memory
  std::atomic<std::uint64_t> inode;  // which shows whether that descriptor still is this memory
  std::atomic<std::uint64_t> bytes;  // of the memory
  std::atomic<std::uint64_t> data;   // of the version's arrays, from the beginning of the memory on
  std::atomic<std::uint64_t> text;   // of its description, which follows them
};

struct alignas(64) LeaseEntry {
  std::atomic<std::uint64_t> owner;  // a ProcessId; the lease is free while there is none
  std::atomic<std::uint64_t> held;
  std::array<std::atomic<std::uint64_t>, 6> name;  // of the reader, for people

  void give_name(std::string_view text);
  std::string named() const;
  // Frees the lease of a process that has ended. True if this call has done it.
  bool reap();
};

struct SlotTable {
  static constexpr std::uint64_t right_magic = 0x746f7273682e7631;

  std::uint64_t magic;
  Token token;
  alignas(64) std::atomic<std::uint64_t> newest;
  std::atomic<std::uint32_t> news;  // grows with each version; readers sleep on it
  std::atomic<std::uint32_t> closed;  // 1: there will be no further version
  alignas(64) std::atomic<std::uint32_t> released;  // grows with each lease that ends; the writer sleeps on it
  std::atomic<std::uint32_t> writer_waits;
  std::atomic<std::uint32_t> leases_used;  // leases from this one on have never had an owner
  std::array<SlotEntry, most_slots> slots;
  std::array<LeaseEntry, most_leases> leases;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace torsh::rpc
