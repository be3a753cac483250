#include "rpc/slots.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <cerrno>
#include <new>
#include <system_error>

#include "common/clock.hpp"
#include "common/failure.hpp"
#include "common/pages.hpp"
#include "transport/shm/futex.hpp"
#include "transport/shm/populate.hpp"
#include "transport/waiting.hpp"

namespace torsh::rpc {
namespace {

constexpr std::size_t huge_page = 2 << 20;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

// Creates memory that others can open, and whose size nobody can change.
Descriptor make_file(std::size_t bytes) {
  Descriptor file(memfd_create("torsh-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.number() < 0) fail("memfd_create");
  if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) fail("shared memory for published arrays");
  if (fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail("F_ADD_SEALS");
  return file;
}

std::shared_ptr<std::byte> map(int file, std::size_t bytes) {
  void* const found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (found == MAP_FAILED) fail("mapping shared memory for published arrays");
  return {static_cast<std::byte*>(found), [bytes](std::byte* base) { munmap(base, bytes); }};
}

}  // namespace

Slots::Slots() : pid_(getpid()), file_(make_file(sizeof(SlotTable))) {
  const auto memory = map(file_.number(), sizeof(SlotTable));
  table_ = {memory, new (memory.get()) SlotTable{}};
  if (getrandom(&table_->token, sizeof(Token), 0) != sizeof(Token)) fail("getrandom");
  table_->magic = SlotTable::right_magic;
}

std::optional<std::size_t> Slots::take(std::size_t bytes, double seconds, const std::function<bool()>& interrupted) {
  const double until = now() + seconds;
  std::optional<std::size_t> found;
  for (bool is_waiting = false;; is_waiting = true) {
    table_->writer_waits.store(is_waiting);
    const std::uint32_t seen = table_->released.load();
    found = find(bytes);
    if (found || now() >= until || table_->closed.load() != 0) break;
    if (is_waiting) shm::futex_wait(table_->released, seen, std::min(nap, until - now()));
    if (interrupted()) throw Interrupted{};
  }
  table_->writer_waits.store(0);
  return found;
}

// Existing memory is best: allocating it takes as long as a copy, or longer.
std::optional<std::size_t> Slots::find(std::size_t bytes) {
  if (const auto found = fitting(bytes)) return found;
  if (reap()) {
    if (const auto found = fitting(bytes)) return found;
  }
  const std::vector<std::size_t> too_small = free_slots();
  const auto none = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return !each.memory; });
  if (too_small.empty() && none == slots_.end()) return std::nullopt;
  const std::size_t slot = too_small.empty() ? static_cast<std::size_t>(none - slots_.begin()) : too_small.front();
  make(slot, bytes);
  return slot;
}

std::optional<std::size_t> Slots::fitting(std::size_t bytes) const {
  for (const std::size_t slot : free_slots()) {
    if (slots_[slot].bytes >= bytes) return slot;
  }
  return std::nullopt;
}

// Slots with memory that are neither the newest version nor held.
std::vector<std::size_t> Slots::free_slots() const {
  std::bitset<most_slots> is_held;
  const auto hold = [&](Held held) {
    if (held && held.slot() < most_slots) is_held.set(held.slot());
  };
  hold({table_->newest.load()});
  const std::size_t used = std::min<std::size_t>(table_->leases_used.load(), most_leases);
  for (std::size_t i = 0; i < used; ++i) hold({table_->leases[i].held.load()});
  std::vector<std::size_t> found;
  for (std::size_t slot = 0; slot < most_slots; ++slot) {
    if (slots_[slot].memory && !is_held[slot]) found.push_back(slot);
  }
  return found;
}

bool Slots::reap() {
  const std::size_t used = std::min<std::size_t>(table_->leases_used.load(), most_leases);
  bool has_reaped = false;
  for (std::size_t i = 0; i < used; ++i) has_reaped = table_->leases[i].reap() || has_reaped;
  return has_reaped;
}

void Slots::make(std::size_t slot, std::size_t bytes) {
  drop(slot);
  const std::size_t whole = round_up(bytes, bytes < huge_page ? page : huge_page);
  Descriptor file = make_file(whole);
  struct stat status {};
  if (fstat(file.number(), &status) != 0) fail("fstat");
  const auto memory = map(file.number(), whole);
  madvise(memory.get(), whole, MADV_HUGEPAGE);  // where the system allows it for shared memory
  shm::populate(memory.get(), whole);
  SlotEntry& entry = table_->slots[slot];
  entry.file.store(static_cast<std::uint64_t>(file.number()));
  entry.inode.store(status.st_ino);
  entry.bytes.store(whole);
  slots_[slot] = {std::move(file), memory, whole};
}

// Readers that have mapped it keep the addresses, without memory behind them.
void Slots::drop(std::size_t slot) {
  Slot& own = slots_[slot];
  if (!own.memory) return;
  fallocate(own.file.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(own.bytes));
  own = Slot{};
}

void Slots::publish(std::size_t slot, std::uint64_t version, std::size_t data, std::size_t text) {
  table_->slots[slot].data.store(data);
  table_->slots[slot].text.store(text);
  table_->newest.store(Held::of(version, slot).word);
  table_->news.fetch_add(1);
  shm::futex_wake(table_->news);
  const std::vector<std::size_t> spare = free_slots();
  for (std::size_t i = spare_slots; i < spare.size(); ++i) drop(spare[i]);
}

std::vector<Holder> Slots::holders() const {
  std::vector<Holder> found;
  const std::size_t used = std::min<std::size_t>(table_->leases_used.load(), most_leases);
  for (std::size_t i = 0; i < used; ++i) {
    const LeaseEntry& lease = table_->leases[i];
    const ProcessId owner{lease.owner.load()};
    const Held held{lease.held.load()};
    if (owner.word != 0 && held && owner.runs()) found.push_back({owner.pid(), lease.named(), held.version()});
  }
  return found;
}

std::size_t Slots::count() const {
  return static_cast<std::size_t>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& each) { return each.memory != nullptr; }));
}

// A fork of the writer's process shares the table, and must not write to it.
void Slots::stop() {
  if (getpid() != pid_ || table_->closed.exchange(1) != 0) return;
  table_->news.fetch_add(1);
  shm::futex_wake(table_->news);
  table_->released.fetch_add(1);
  shm::futex_wake(table_->released);
}

void Slots::close() {
  stop();
  file_ = Descriptor();
  slots_ = {};
}

}  // namespace torsh::rpc
