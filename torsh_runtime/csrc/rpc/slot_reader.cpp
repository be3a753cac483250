#include "rpc/slot_reader.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "common/clock.hpp"
#include "common/failure.hpp"
#include "transport/descriptor.hpp"
#include "transport/shm/futex.hpp"
#include "transport/waiting.hpp"

namespace torsh::rpc {
namespace {

[[noreturn]] void fail(int error, const char* what) { throw std::system_error(error, std::generic_category(), what); }

// A file of another process, of which the kernel lets processes of the same user open what they may trace. `inode`: the
// one that it must have; 0 is any.
Descriptor open_file(int pid, std::uint64_t file, std::uint64_t inode, std::size_t bytes, int flags) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file);
  Descriptor opened(open(path.c_str(), flags | O_CLOEXEC));
  if (opened.number() < 0) fail(errno, path.c_str());
  struct stat status {};
  if (fstat(opened.number(), &status) != 0) fail(errno, "fstat");
  if ((inode != 0 && status.st_ino != inode) || static_cast<std::size_t>(status.st_size) < bytes) fail(ENOENT, path.c_str());
  return opened;
}

std::shared_ptr<std::byte> map(const Descriptor& file, std::size_t bytes, int protection, int flags) {
  void* const found = mmap(nullptr, bytes, protection, flags, file.number(), 0);
  if (found == MAP_FAILED) fail(errno, "mapping a writer's memory");
  return {static_cast<std::byte*>(found), [bytes](std::byte* base) { munmap(base, bytes); }};
}

}  // namespace

// What a fork of the reader's process has of it holds nothing. The writer looks at `held` alone, so the lease can be
// another's as soon as it has no owner.
Lease::~Lease() {
  if (getpid() != pid_) return;
  if (was_writable_) madvise(memory_.own.get(), memory_.bytes, MADV_DONTNEED);
  entry_.held.store(0);
  entry_.owner.store(0);
  table_->released.fetch_add(1);
  if (table_->writer_waits.load() != 0) shm::futex_wake(table_->released);
}

std::byte* Lease::writable_data() {
  was_writable_ = true;
  return memory_.own.get();
}

SlotReader::SlotReader(int pid, int file, const Token& token, std::string name)
    : pid_(pid), name_(std::move(name)), writer_(shm::Process::find(pid)), own_(ProcessId::own()) {
  if (!writer_) fail(ESRCH, "the writer's process");
  const Descriptor opened = open_file(pid, static_cast<std::uint64_t>(file), 0, sizeof(SlotTable), O_RDWR);
  const auto memory = map(opened, sizeof(SlotTable), PROT_READ | PROT_WRITE, MAP_SHARED);
  table_ = {memory, reinterpret_cast<SlotTable*>(memory.get())};
  if (table_->magic != SlotTable::right_magic || table_->token != token) fail(ENOENT, "the writer's table");
}

News SlotReader::wait(std::uint64_t after, double seconds, const std::function<bool()>& interrupted) const {
  const double until = now() + seconds;
  for (;;) {
    const std::uint32_t seen = table_->news.load();
    if (newest() > after) return News::newer;
    if (table_->closed.load() != 0) return News::closed;
    if (!is_open()) return News::lost;
    if (now() >= until) return News::late;
    shm::futex_wait(table_->news, seen, std::min(nap, until - now()));
    if (interrupted()) throw Interrupted{};
  }
}

std::shared_ptr<Lease> SlotReader::hold() {
  const std::lock_guard<std::mutex> alone(mutex_);
  const Held newest{table_->newest.load()};
  if (!newest) return nullptr;
  const auto last = last_.lock();
  if (last && last->pid_ == getpid() && last->held_.word == newest.word) return last;
  const auto lease = hold_anew();
  last_ = lease;
  return lease;
}

// What is being read about the slot cannot change: it changes only before it holds the newest version.
std::shared_ptr<Lease> SlotReader::hold_anew() {
  const auto lease = std::make_shared<Lease>(table_, claim(owner()), owner());
  Held held;
  do {
    held.word = table_->newest.load();
    lease->entry_.held.store(held.word);
  } while (table_->newest.load() != held.word);
  if (held.slot() >= most_slots) fail(ENOENT, "the writer's table");
  const SlotEntry& slot = table_->slots[held.slot()];
  lease->held_ = held;
  lease->data_ = slot.data.load();
  lease->text_ = slot.text.load();
  if (lease->data_ + lease->text_ > slot.bytes.load()) fail(ENOENT, "the writer's table");
  lease->memory_ = mapped(held.slot());
  return lease;
}

LeaseEntry& SlotReader::claim(ProcessId owner) const {
  if (LeaseEntry* const found = claim_free(owner)) return *found;
  for (LeaseEntry& each : table_->leases) each.reap();
  if (LeaseEntry* const found = claim_free(owner)) return *found;
  throw NoLeaseLeft{};
}

LeaseEntry* SlotReader::claim_free(ProcessId owner) const {
  for (std::uint32_t i = 0; i < most_leases; ++i) {
    LeaseEntry& entry = table_->leases[i];
    std::uint64_t none = 0;
    if (entry.owner.load() != 0 || !entry.owner.compare_exchange_strong(none, owner.word)) continue;
    entry.give_name(name_);
    std::uint32_t used = table_->leases_used.load();
    while (used <= i && !table_->leases_used.compare_exchange_weak(used, i + 1)) {
    }
    return &entry;
  }
  return nullptr;
}

const Mapping& SlotReader::mapped(std::size_t slot) {
  const SlotEntry& entry = table_->slots[slot];
  Mapping& known = mappings_[slot];
  const std::uint64_t inode = entry.inode.load();
  if (known.inode == inode) return known;
  known = Mapping{};
  const std::size_t bytes = entry.bytes.load();
  const Descriptor file = open_file(pid_, entry.file.load(), inode, bytes, O_RDONLY);
  const auto shared = map(file, bytes, PROT_READ, MAP_SHARED);
  const auto own = map(file, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE);
  known = {inode, bytes, shared, own};
  return known;
}

// A fork of the process that made this is another reader.
ProcessId SlotReader::owner() {
  if (own_.pid() != getpid()) own_ = ProcessId::own();
  return own_;
}

}  // namespace torsh::rpc
