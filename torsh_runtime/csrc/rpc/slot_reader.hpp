// A reader of the versions that a writer of the same node publishes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rpc/slot_table.hpp"
#include "transport/shm/process.hpp"

namespace torsh::rpc {

// A slot's memory in this process, mapped twice: shared, and with private writes.
struct Mapping {
  std::uint64_t inode = 0;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> shared, own;
};

// A version that the writer does not overwrite during the lifetime of this lease.
class Lease {
 public:
  Lease(std::shared_ptr<SlotTable> table, LeaseEntry& entry, ProcessId owner)
      : table_(std::move(table)), entry_(entry), pid_(owner.pid()) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::uint64_t version() const { return held_.version(); }
  const std::byte* data() const { return memory_.shared.get(); }
  // The same bytes, for arrays that cannot be made read-only. Only this process sees what it writes there, until the
  // lease ends.
  std::byte* writable_data();
  std::size_t bytes() const { return data_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data()) + data_, text_}; }

 private:
  friend class SlotReader;

  std::shared_ptr<SlotTable> table_;
  LeaseEntry& entry_;
  const int pid_;
  Held held_;
  Mapping memory_;
  std::atomic<bool> was_writable_{false};
  std::size_t data_ = 0, text_ = 0;
};

// Living processes hold all leases of the table.
struct NoLeaseLeft : std::exception {
  const char* what() const noexcept override { return "too many readers hold versions at once"; }
};

enum class News { newer, closed, lost, late };

// Any thread.
class SlotReader {
 public:
  // Opens the table of process `pid`, which has it as descriptor `file`. Throws std::system_error if that is not
  // allowed, if the process has ended, or (ENOENT) if it is a different table.
  SlotReader(int pid, int file, const Token& token, std::string name);

  // The newest version; 0 if there is none yet.
  std::uint64_t newest() const { return Held{table_->newest.load()}.version(); }
  // Waits up to `seconds` for a later version than `after`. lost: the writer's process has ended; closed: it
  // publishes no more. Throws Interrupted if `interrupted` says so.
  News wait(std::uint64_t after, double seconds, const std::function<bool()>& interrupted) const;
  // Whether a further version may come.
  bool is_open() const { return table_->closed.load() == 0 && !writer_->has_ended() && !writer_->is_ending(); }
  // The newest version, in one lease for all users of this reader; null if there is none yet. Throws NoLeaseLeft, or
  // std::system_error if the writer has ended and this reader has never held the slot.
  std::shared_ptr<Lease> hold();

 private:
  LeaseEntry& claim(ProcessId owner) const;
  LeaseEntry* claim_free(ProcessId owner) const;
  const Mapping& mapped(std::size_t slot);
  std::shared_ptr<Lease> hold_anew();
  ProcessId owner();

  const int pid_;
  const std::string name_;
  std::shared_ptr<shm::Process> writer_;
  std::shared_ptr<SlotTable> table_;
  std::mutex mutex_;
  ProcessId own_;
  std::weak_ptr<Lease> last_;
  std::array<Mapping, most_slots> mappings_;
};

}  // namespace torsh::rpc
