// A reader's end: versions that a writer of the same node publishes.
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

// A slot's memory in this process: all see the one, and what this process writes to the other stays its own.
struct Mapping {
  std::uint64_t inode = 0;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> shared, own;
};

// A version, which the writer does not overwrite for as long as this lives.
class Lease {
 public:
  Lease(std::shared_ptr<SlotTable> table, LeaseEntry& entry, ProcessId owner)
      : table_(std::move(table)), entry_(entry), pid_(owner.pid()) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::uint64_t version() const { return held_.version(); }
  const std::byte* data() const { return memory_.shared.get(); }
  // The same bytes, for arrays that cannot be made read-only. What is written there is seen by this process alone, and
  // is gone when the lease ends.
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

// All leases of the table are taken by living processes.
struct NoLeaseLeft : std::exception {
  const char* what() const noexcept override { return "too many readers hold versions at once"; }
};

enum class News { newer, closed, lost, late };

// Any thread.
class SlotReader {
 public:
  // Opens the table of the process of this number, which has this descriptor of it. Throws std::system_error if it
  // cannot be opened: it is not allowed, or the process has ended; or (ENOENT) if it is another table.
  SlotReader(int pid, int file, const Token& token, std::string name);

  // The newest version; 0 if there is none yet.
  std::uint64_t newest() const { return Held{table_->newest.load()}.version(); }
  // Waits for a later version than this one, for so many seconds. lost: the writer's process has ended; closed: it
  // publishes no more. Throws Interrupted if `interrupted` says so.
  News wait(std::uint64_t after, double seconds, const std::function<bool()>& interrupted) const;
  // Whether a further version may come.
  bool is_open() const { return table_->closed.load() == 0 && !writer_->has_ended() && !writer_->is_ending(); }
  // The newest version, in one lease for all who hold it by this reader; null if there is none yet. Throws NoLeaseLeft, or std::system_error if the writer has ended and
  // this reader has never held the slot before.
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
