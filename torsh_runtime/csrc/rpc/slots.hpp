// A writer's memory for the versions that it publishes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rpc/slot_table.hpp"
#include "transport/descriptor.hpp"

namespace torsh::rpc {

// A reader that holds a version.
struct Holder {
  int pid;
  std::string name;
  std::uint64_t version;
};

// One thread at a time, except for holders() and stop(). All but the constructor throw std::system_error for a lack of memory.
class Slots {
 public:
  Slots();
  ~Slots() { close(); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  // The descriptor of the table, and the token that it begins with. Readers need both to open it.
  int file() const { return file_.number(); }
  const Token& token() const { return table_->token; }

  // Returns a slot of at least `bytes` that no reader holds, creating one if needed, up to most_slots. Returns none
  // if readers still hold all of them after `seconds`, or after stop(). Throws Interrupted if `interrupted` says so.
  std::optional<std::size_t> take(std::size_t bytes, double seconds, const std::function<bool()>& interrupted);
  // The slot's memory, which belongs to the caller from take() to publish().
  const std::shared_ptr<std::byte>& memory(std::size_t slot) const { return slots_[slot].memory; }
  std::size_t bytes(std::size_t slot) const { return slots_[slot].bytes; }
  // Makes the slot's contents the newest version: `data` bytes of arrays, and then `text` bytes of description.
  void publish(std::size_t slot, std::uint64_t version, std::size_t data, std::size_t text);
  // Living readers that hold a version. Any thread.
  std::vector<Holder> holders() const;
  // How many slots there are, whether held or not.
  std::size_t count() const;
  // Publishes no more; ends take(). Any thread.
  void stop();
  // Like stop(), and frees the memory. Readers keep what they have mapped; others do not find it any more.
  void close();

 private:
  struct Slot {
    Descriptor file{};
    std::shared_ptr<std::byte> memory;  // null if the slot has none
    std::size_t bytes = 0;
  };
  static constexpr std::size_t spare_slots = 2;  // kept when no reader holds them

  std::optional<std::size_t> find(std::size_t bytes);
  std::optional<std::size_t> fitting(std::size_t bytes) const;
  std::vector<std::size_t> free_slots() const;
  bool reap();
  void make(std::size_t slot, std::size_t bytes);
  void drop(std::size_t slot);

  const int pid_;
  Descriptor file_;
  std::shared_ptr<SlotTable> table_;
  std::array<Slot, most_slots> slots_;
};

}  // namespace torsh::rpc
