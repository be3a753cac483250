#include "rpc/slot_table.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "transport/process_stat.hpp"
#include "transport/shm/process.hpp"

namespace torsh::rpc {

ProcessId ProcessId::own() {
  const auto stat = read_stat(getpid());
  return {(stat ? stat->started : 0) << pid_bits | static_cast<std::uint64_t>(getpid())};
}

bool ProcessId::runs() const {
  const auto process = shm::Process::find(pid());
  if (!process || process->has_ended()) return false;
  const auto stat = read_stat(pid());
  const std::uint64_t started = word >> pid_bits;
  if (stat && started != 0 && stat->started != started) return false;
  return !process->is_ending();
}

void LeaseEntry::give_name(std::string_view text) {
  std::array<char, sizeof name> letters{};
  std::memcpy(letters.data(), text.data(), std::min(text.size(), letters.size() - 1));
  for (std::size_t i = 0; i < name.size(); ++i) {
    std::uint64_t word;
    std::memcpy(&word, letters.data() + i * sizeof word, sizeof word);
    name[i].store(word, std::memory_order_relaxed);
  }
}

std::string LeaseEntry::named() const {
  std::array<char, sizeof name> letters{};
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::uint64_t word = name[i].load(std::memory_order_relaxed);
    std::memcpy(letters.data() + i * sizeof word, &word, sizeof word);
  }
  return {letters.data(), strnlen(letters.data(), letters.size() - 1)};
}

// Several may try at once. Who does it owns the lease meanwhile, so a reader that takes it afterwards is not disturbed.
bool LeaseEntry::reap() {
  std::uint64_t seen = owner.load();
  if (seen == 0 || ProcessId{seen}.runs()) return false;
  if (!owner.compare_exchange_strong(seen, ProcessId::own().word)) return false;
  held.store(0);
  owner.store(0);
  return true;
}

}  // namespace torsh::rpc
