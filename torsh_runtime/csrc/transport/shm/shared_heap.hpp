// Memory for this process's large arrays, which the other ranks of its node have mapped.
//
// It is one anonymous file in which each rank has a part. Users of an array need not know: a fork of the process has
// the arrays as they were and from then on its own, and after a failed operation no peer can write into the array any
// more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/descriptor.hpp"
#include "transport/shm/blocks.hpp"

namespace torsh::shm {

// In bytes. numpy allocates smaller arrays.
constexpr std::size_t least_array = 128 << 10;

struct SharedHeapSetup {
  int descriptor;       // of the file; it stays the caller's
  std::size_t offset;   // in the file, where the first rank's part begins
  std::size_t stride;   // bytes of each rank's part
  std::size_t kept;     // bytes that stay present when arrays are gone
  int rank;             // whose part is this process's
  std::vector<pid_t> pids;
  std::uint64_t number;  // the same for all ranks, and for no other heap; not 0
};

class SharedHeap {
 public:
  // Creates the process's heap, which it remains until it retires. Throws std::system_error.
  static std::shared_ptr<SharedHeap> make(const SharedHeapSetup& setup);
  // Null in a fork.
  static std::shared_ptr<SharedHeap> current();
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  std::uint64_t number() const { return setup_.number; }
  // Where the parts of these processes are mapped; empty if it is not all of theirs.
  std::vector<std::byte*> bases(const std::vector<pid_t>& pids) const;
  int rank() const { return setup_.rank; }
  std::size_t stride() const { return setup_.stride; }

  // Returns null if there is no room, in a fork, or after retire(). The memory is zeros if `zero`.
  std::byte* allocate(std::size_t bytes, bool zero);
  // False if no block begins there.
  bool release(std::byte* data);
  // The bytes of the block that begins there; none if none does.
  std::optional<std::size_t> size_of(const std::byte* data);

  // Lends memory of one block to the peers. Returns its offset in this rank's part, or none if they cannot see it
  // (any more).
  std::optional<std::uint64_t> lend(const std::byte* data, std::size_t bytes);
  // Ends the loan. After a failure (not `well`) peers may be about to write there, so they no longer see it once no
  // other operation uses it.
  void take_back(std::uint64_t offset, bool well);

  // Allocates nothing more, and frees what is kept for other arrays.
  void retire();

  // For the handlers of fork(). The first locks, and the others unlock.
  void before_fork();
  void in_parent();
  void in_fork();

 private:
  // A block that stays shared, and the memory that a fork gets for it.
  struct Copied {
    Blocks::Entry* entry;
    void* room;
  };

  explicit SharedHeap(const SharedHeapSetup& setup);
  off_t in_file(std::size_t offset) const;
  bool map_own(std::size_t offset, std::size_t bytes, int sharing);
  bool make_private(Blocks::Entry& entry);
  void copy_for_fork(Blocks::Entry& entry);
  bool drop(std::size_t offset, std::size_t bytes);
  void drop_kept();
  template <class OnData, class OnHole>
  void for_parts(std::size_t offset, std::size_t bytes, OnData on_data, OnHole on_hole) const;

  SharedHeapSetup setup_;
  Descriptor file_;
  std::byte* base_ = nullptr;
  std::byte* own_ = nullptr;
  std::mutex mutex_;
  Blocks blocks_;
  std::atomic<bool> gives_{true};
  bool is_fork_ = false;
  bool is_pinned_ = false;   // some block is
  std::vector<Copied> copied_;  // while a fork is under way
};

// Lends a block to peers during its lifetime. If that ends with an error, they cannot see it from then on.
class Loan {
 public:
  Loan(std::shared_ptr<SharedHeap> heap, std::uint64_t offset, int errors)
      : heap_(std::move(heap)), offset_(offset), errors_(errors) {}
  Loan(Loan&& other) noexcept = default;
  Loan& operator=(Loan&&) = delete;
  ~Loan();

 private:
  std::shared_ptr<SharedHeap> heap_;
  std::uint64_t offset_;
  int errors_;  // exceptions in flight when it began
};

}  // namespace torsh::shm
