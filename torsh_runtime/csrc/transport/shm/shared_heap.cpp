#include "transport/shm/shared_heap.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>

#include "common/pages.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace torsh::shm {
namespace {

constexpr std::size_t most_blocks = 8192;           // each may be a mapping of its own, and a process has 65,530
constexpr std::size_t copied_at_a_time = 32 << 20;  // the extra memory needed for a moment

struct SharedHeaps {
  std::mutex mutex;
  std::vector<SharedHeap*> all;
  std::weak_ptr<SharedHeap> current;
};

// Never destroyed: forks may come until the process ends.
SharedHeaps& heaps() {
  static SharedHeaps& made = *new SharedHeaps;
  return made;
}

void before_any_fork() {
  heaps().mutex.lock();
  for (SharedHeap* heap : heaps().all) heap->before_fork();
}

void in_any_parent() {
  for (SharedHeap* heap : heaps().all) heap->in_parent();
  heaps().mutex.unlock();
}

void in_any_fork() {
  for (SharedHeap* heap : heaps().all) heap->in_fork();
  heaps().mutex.unlock();
}

// No array can be larger; numpy's own allocator reports that.
std::size_t most_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Writes a word back unchanged, so that other threads may write there meanwhile.
void touch(std::byte* data) {
  auto& word = *reinterpret_cast<std::atomic<std::uint32_t>*>(data);
  std::uint32_t found = word.load();
  while (!word.compare_exchange_weak(found, found)) {
  }
}

// Gives the process its own copies of these pages of a private mapping. Returns false without memory for it.
bool copy_pages(std::byte* data, std::size_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  for (std::size_t at = 0; at < bytes; at += least_page) touch(data + at);  // Linux < 5.14
  return true;
}

}  // namespace

std::shared_ptr<SharedHeap> SharedHeap::make(const SharedHeapSetup& setup) {
  static const int registered = pthread_atfork(before_any_fork, in_any_parent, in_any_fork);
  if (registered != 0) throw std::system_error(registered, std::generic_category(), "pthread_atfork");
  std::shared_ptr<SharedHeap> made(new SharedHeap(setup));
  const std::lock_guard<std::mutex> alone(heaps().mutex);
  heaps().all.push_back(made.get());
  heaps().current = made;
  return made;
}

std::shared_ptr<SharedHeap> SharedHeap::current() {
  const auto found = [] {
    const std::lock_guard<std::mutex> alone(heaps().mutex);
    return heaps().current.lock();
  }();
  return found && found->gives_ ? found : nullptr;
}

SharedHeap::SharedHeap(const SharedHeapSetup& setup)
    : setup_(setup), file_(fcntl(setup.descriptor, F_DUPFD_CLOEXEC, 0)), blocks_(setup.stride, setup.kept) {
  const std::size_t bytes = setup.stride * setup.pids.size();
  void* mapped = file_.number() < 0 ? MAP_FAILED
                                    : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                                           file_.number(), static_cast<off_t>(setup.offset));
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map memory for arrays");
  base_ = static_cast<std::byte*>(mapped);
  own_ = base_ + setup.stride * static_cast<std::size_t>(setup.rank);
  madvise(base_, bytes, MADV_DONTFORK);
  madvise(base_, bytes, MADV_DONTDUMP);
  madvise(own_, setup.stride, MADV_DODUMP);
  // Without holes in the file no memory could be freed, and none would be zeros again.
  if (!drop(0, page)) {
    const int error = errno;
    munmap(base_, bytes);
    throw std::system_error(error, std::generic_category(), "cannot give memory of arrays back");
  }
  madvise(own_, setup.stride, MADV_HUGEPAGE);  // if the system has huge pages for shared memory
}

SharedHeap::~SharedHeap() {
  {
    const std::lock_guard<std::mutex> alone(heaps().mutex);
    std::erase(heaps().all, this);
  }
  if (is_fork_) return;  // its pages are between other mappings of its own
  if (!is_pinned_) (void)drop(0, setup_.stride);
  munmap(base_, setup_.stride * setup_.pids.size());
}

std::vector<std::byte*> SharedHeap::bases(const std::vector<pid_t>& pids) const {
  std::vector<std::byte*> found;
  for (const pid_t pid : pids) {
    const auto place = std::find(setup_.pids.begin(), setup_.pids.end(), pid);
    if (place == setup_.pids.end()) return {};
    found.push_back(base_ + setup_.stride * static_cast<std::size_t>(place - setup_.pids.begin()));
  }
  return found;
}

off_t SharedHeap::in_file(std::size_t offset) const {
  return static_cast<off_t>(setup_.offset + setup_.stride * static_cast<std::size_t>(setup_.rank) + offset);
}

std::byte* SharedHeap::allocate(std::size_t bytes, bool zero) {
  std::optional<Blocks::Taken> taken;
  {
    const std::lock_guard<std::mutex> alone(mutex_);
    const bool has_room = bytes <= most_bytes() && blocks_.given().size() < most_blocks;
    if (!gives_ || !has_room) return nullptr;
    taken = blocks_.take(bytes, zero);
  }
  if (!taken) return nullptr;
  if (zero && !taken->is_zero) std::memset(own_ + taken->offset, 0, bytes);
  return own_ + taken->offset;
}

std::optional<std::size_t> SharedHeap::size_of(const std::byte* data) {
  const auto offset = static_cast<std::size_t>(data - own_);
  if (offset >= setup_.stride) return std::nullopt;
  const std::lock_guard<std::mutex> alone(mutex_);
  const auto found = blocks_.given().find(offset);
  if (found == blocks_.given().end()) return std::nullopt;
  return found->second.bytes;
}

bool SharedHeap::release(std::byte* data) {
  const auto offset = static_cast<std::size_t>(data - own_);
  if (offset >= setup_.stride) return false;
  const std::lock_guard<std::mutex> alone(mutex_);
  const auto found = blocks_.given().find(offset);
  if (found == blocks_.given().end()) return false;
  const Block block = found->second;
  if (block.is_absent) {
    blocks_.forget(offset);
    return true;
  }
  const bool usable = !is_fork_ && !block.is_tainted && (!block.is_private || map_own(offset, block.bytes, MAP_SHARED));
  if (!usable) {
    madvise(data, block.bytes, MADV_DONTNEED);
    if (!is_fork_ && !block.is_pinned) (void)drop(offset, block.bytes);
    blocks_.forget(offset);
    return true;
  }
  if (block.is_private) {
    madvise(data, block.bytes, MADV_DONTFORK);
    (void)drop(offset, block.bytes);
  }
  blocks_.give_back(offset, !block.is_private);
  drop_kept();
  return true;
}

std::optional<std::uint64_t> SharedHeap::lend(const std::byte* data, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(data - own_);
  if (offset >= setup_.stride || bytes == 0) return std::nullopt;
  const std::lock_guard<std::mutex> alone(mutex_);
  Blocks::Entry* found = blocks_.around(offset, bytes);
  if (found == nullptr || found->second.is_private || found->second.is_spoilt || is_fork_) return std::nullopt;
  ++found->second.lent;
  return offset;
}

void SharedHeap::take_back(std::uint64_t offset, bool well) {
  const std::lock_guard<std::mutex> alone(mutex_);
  Blocks::Entry* found = blocks_.around(offset, 0);
  if (found == nullptr) return;
  Block& block = found->second;
  --block.lent;
  block.is_spoilt = block.is_spoilt || !well;
  if (!block.is_spoilt || block.lent != 0 || block.is_private || is_fork_) return;
  block.is_tainted = true;
  (void)make_private(*found);
}

void SharedHeap::retire() {
  const std::lock_guard<std::mutex> alone(mutex_);
  gives_ = false;
  if (is_fork_) return;
  blocks_.keep(0);
  drop_kept();
  for (std::size_t peer = 0; peer < setup_.pids.size(); ++peer) {  // dead processes cannot do so
    if (kill(setup_.pids[peer], 0) == 0 || errno != ESRCH) continue;
    fallocate(file_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(setup_.offset + setup_.stride * peer), static_cast<off_t>(setup_.stride));
  }
}

bool SharedHeap::map_own(std::size_t offset, std::size_t bytes, int sharing) {
  return mmap(own_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_NORESERVE | sharing, file_.number(),
              in_file(offset)) != MAP_FAILED;
}

bool SharedHeap::drop(std::size_t offset, std::size_t bytes) {
  constexpr int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return fallocate(file_.number(), how, in_file(offset), static_cast<off_t>(bytes)) == 0;
}

void SharedHeap::drop_kept() {
  while (const auto range = blocks_.next_to_drop()) (void)drop(range->offset, range->bytes);
}

// Calls on_data for the parts that are present in the file, step by step, and on_hole if there are holes.
template <class OnData, class OnHole>
void SharedHeap::for_parts(std::size_t offset, std::size_t bytes, OnData on_data, OnHole on_hole) const {
  const off_t first = in_file(offset), end = first + static_cast<off_t>(bytes);
  for (off_t hole = first; hole < end;) {
    const off_t found = lseek(file_.number(), hole, SEEK_DATA);
    const off_t data = found < 0 ? end : std::min(found, end);
    if (data > hole) on_hole();
    if (data == end) return;
    hole = std::min(lseek(file_.number(), data, SEEK_HOLE), end);
    for (off_t part = data; part < hole; part += copied_at_a_time) {
      on_data(offset + static_cast<std::size_t>(part - first),
              static_cast<std::size_t>(std::min<off_t>(hole - part, copied_at_a_time)));
    }
  }
}

// The mapping changes in one step, so nothing is lost that other threads write meanwhile. Earlier writes are in the
// file, which is copied, and later ones go to the copy. Pages that are not present remain the file's, for this
// process and its forks, and must remain zeros.
bool SharedHeap::make_private(Blocks::Entry& entry) {
  auto& [start, block] = entry;
  if (!map_own(start, block.bytes, MAP_PRIVATE)) return false;  // too many mappings, say
  block.is_private = true;
  const auto copy = [&](std::size_t offset, std::size_t bytes) {
    if (!block.is_pinned && copy_pages(own_ + offset, bytes)) {
      (void)drop(offset, bytes);
    } else {
      block.is_tainted = block.is_pinned = is_pinned_ = true;
    }
  };
  for_parts(start, block.bytes, copy, [&] { block.is_tainted = true; });
  return true;
}

// A fork has its arrays as they were, and neither side sees later changes of the other. So the arrays leave the
// shared memory. Arrays that peers are using stay, and are copied.
void SharedHeap::before_fork() {
  mutex_.lock();
  if (is_fork_) return;
  for (Blocks::Entry& entry : blocks_.given()) {
    const Block& block = entry.second;
    if (block.is_private) continue;
    if (block.lent != 0 || !make_private(entry)) copy_for_fork(entry);
  }
}

// Memory is allocated here, where a failure does no harm: the fork then does without the array.
void SharedHeap::copy_for_fork(Blocks::Entry& entry) {
  auto& [start, block] = entry;
  constexpr int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* room = mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, how, -1, 0);
  if (room != MAP_FAILED && madvise(own_ + start, block.bytes, MADV_DOFORK) != 0) {
    munmap(room, block.bytes);
    room = MAP_FAILED;
  }
  copied_.push_back({&entry, room});
}

void SharedHeap::in_parent() {
  for (const auto& [entry, room] : copied_) {
    if (room == MAP_FAILED) continue;
    munmap(room, entry->second.bytes);
    madvise(own_ + entry->first, entry->second.bytes, MADV_DONTFORK);
  }
  copied_.clear();
  mutex_.unlock();
}

// Must not allocate or free, since other threads of the parent may have held the allocator's locks.
void SharedHeap::in_fork() {
  for (const auto& [entry, room] : copied_) {
    auto& [start, block] = *entry;
    block.is_absent = true;
    if (room == MAP_FAILED) continue;
    std::memcpy(room, own_ + start, block.bytes);
    if (mremap(room, block.bytes, block.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, own_ + start) == MAP_FAILED) {
      munmap(own_ + start, block.bytes);  // better no memory than the parent's
    } else {
      block.is_absent = false;
    }
  }
  copied_.clear();
  if (!is_fork_) close(file_.release());
  is_fork_ = true;
  gives_ = false;
  mutex_.unlock();
}

Loan::~Loan() {
  if (heap_) heap_->take_back(offset_, std::uncaught_exceptions() <= errors_);
}

}  // namespace torsh::shm
