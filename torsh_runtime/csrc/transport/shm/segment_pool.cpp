#include "transport/shm/segment_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/clock.hpp"
#include "common/failure.hpp"
#include "common/pages.hpp"
#include "transport/forks.hpp"
#include "transport/shm/futex.hpp"
#include "transport/shm/populate.hpp"
#include "transport/waiting.hpp"

namespace torsh::shm {
namespace {

constexpr int most_yields = 2;

void raise_to(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  std::uint32_t found = word.load();
  while (found < value && !word.compare_exchange_weak(found, value)) {
  }
}

}  // namespace

std::shared_ptr<SegmentPool> SegmentPool::make(const PoolSetup& setup) {
  return std::shared_ptr<SegmentPool>(new SegmentPool(setup));
}

SegmentPool::SegmentPool(const PoolSetup& setup)
    : stride_(setup.stride),
      ranks_(setup.pids.size()),
      rank_(setup.rank),
      forks_(fork_count()),
      peers_(setup.pids),
      blocks_(setup.stride, 0) {
  if (table_bytes() + page > stride_) throw std::invalid_argument("the pool's parts are too small for so many ranks");
  void* mapped = mmap(nullptr, stride_ * ranks_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, setup.descriptor,
                      static_cast<off_t>(setup.offset));
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map memory for further groups");
  base_ = static_cast<std::byte*>(mapped);
  madvise(base_, stride_ * ranks_, MADV_DONTDUMP);
  try {
    populate(part(rank_), table_bytes());  // before the others look there, after the handshake
    check_removal();
  } catch (...) {
    munmap(base_, stride_ * ranks_);
    throw;
  }
  (void)blocks_.take(table_bytes(), false);
}

// Some emulators report success without freeing the memory, which would then not be zeros again.
void SegmentPool::check_removal() const {
  std::byte* const probe = part(rank_) + table_bytes();
  *probe = std::byte{1};
  if (madvise(probe, page, MADV_REMOVE) != 0) throw std::system_error(errno, std::generic_category(), "cannot give shared memory back");
  if (*probe != std::byte{0}) throw std::system_error(ENOTSUP, std::generic_category(), "shared memory is not given back");
}

SegmentPool::~SegmentPool() { munmap(base_, stride_ * ranks_); }

std::size_t SegmentPool::entry_bytes() const { return round_up(sizeof(Entry) + ranks_ * sizeof(Member), alignof(Entry)); }

std::size_t SegmentPool::table_bytes() const { return round_up(sizeof(Table) + num_entries * entry_bytes(), page); }

std::size_t SegmentPool::held_bytes() const { return round_up(ranks_ * sizeof(Held), page); }

SegmentPool::Entry& SegmentPool::entry(int rank, std::size_t number) const {
  return *reinterpret_cast<Entry*>(part(rank) + sizeof(Table) + number * entry_bytes());
}

// Returns a free entry of this rank. Latecomers find a group that was decided to be created elsewhere until no other
// entry is free.
std::optional<std::size_t> SegmentPool::free_entry() {
  for (const bool forgets : {false, true}) {
    for (std::size_t number = 0; number < num_entries; ++number) {
      Entry& found = entry(rank_, number);
      if (busy_[number] || (found.ticket != 0 && !forgets)) continue;
      found.ticket = 0;
      if (is_over(found, last_[number])) return number;
    }
  }
  return std::nullopt;
}

// Forgets the decision of an earlier attempt at the group, which must not be taken for this one's.
void SegmentPool::forget(const std::array<std::uint64_t, 2>& name) {
  for (std::size_t number = 0; number < num_entries; ++number) {
    Entry& found = entry(rank_, number);
    if (!busy_[number] && found.name[0] == name[0] && found.name[1] == name[1]) found.ticket = 0;
  }
}

// Whether no member still reads the entry under this ticket, which must have been withdrawn.
bool SegmentPool::is_over(Entry& entry, std::uint32_t ticket) const {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const Member& each = member(entry, static_cast<int>(rank));
    if (each.come == ticket && each.done != ticket && !peers_.has_ended(static_cast<int>(rank))) return false;
  }
  return true;
}

bool SegmentPool::is_held(std::size_t offset) const {
  const Held* const flags = held(rank_, offset);
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const bool holds = flags[rank].load(std::memory_order_acquire) != 0;
    if (holds && !peers_.has_ended(static_cast<int>(rank))) return true;
  }
  return false;
}

// A segment that these ranks hold; 0 if there is no room.
std::size_t SegmentPool::take(std::size_t bytes, const std::vector<int>& holders) {
  sweep();
  const auto taken = blocks_.take(held_bytes() + bytes, true);
  if (!taken) return 0;
  try {
    populate(part(rank_) + taken->offset, held_bytes());
  } catch (...) {
    blocks_.give_back(taken->offset, false);
    throw;
  }
  for (const int holder : holders) held(rank_, taken->offset)[holder].store(1, std::memory_order_relaxed);
  return taken->offset;
}

// Frees the segments that nobody uses any more.
void SegmentPool::sweep() {
  std::erase_if(left_, [this](std::size_t offset) {
    if (is_held(offset)) return false;
    give_back(offset);
    return true;
  });
}

// The memory must be zeros when it is used again.
void SegmentPool::give_back(std::size_t offset) {
  if (madvise(part(rank_) + offset, blocks_.given().at(offset).bytes, MADV_REMOVE) == 0) {
    blocks_.give_back(offset, false);
  } else {
    blocks_.forget(offset);
  }
}

GroupFormation::GroupFormation(std::shared_ptr<SegmentPool> pool, std::array<std::uint64_t, 2> name, std::vector<int> members, std::size_t bytes)
    : pool_(std::move(pool)), name_(name), members_(std::move(members)), bytes_(bytes), founder_(members_.empty() ? -1 : members_.front()) {
  const auto is_known = [&](int member) { return member >= 0 && member < pool_->ranks(); };
  if (!std::all_of(members_.begin(), members_.end(), is_known)) throw std::invalid_argument("a member is not in the pool");
  if (std::find(members_.begin(), members_.end(), pool_->rank_) == members_.end()) throw std::invalid_argument("this rank is no member");
  if (pool_->forks_ != fork_count()) {
    decision_ = Decision::elsewhere;
  } else if (is_first()) {
    publish();
  }
}

// Without an entry the group is created elsewhere, where the others find it.
void GroupFormation::publish() {
  SegmentPool& pool = *pool_;
  const std::lock_guard<std::mutex> alone(pool.mutex_);
  const std::optional<std::size_t> number = pool.free_entry();
  if (!number) {
    decision_ = Decision::elsewhere;
    return;
  }
  number_ = *number;
  pool.forget(name_);
  offset_ = pool.take(bytes_, members_);
  ticket_ = pool.last_[number_] = ++pool.ticket_;
  pool.busy_[number_] = true;
  entry_ = &pool.entry(pool.rank_, number_);
  entry_->decision = static_cast<std::uint32_t>(Decision::open);
  entry_->name[0] = name_[0];
  entry_->name[1] = name_[1];
  entry_->offset = offset_;
  entry_->bytes = bytes_;
  raise_to(pool.member(*entry_, pool.rank_).come, ticket_);
  entry_->ticket = ticket_;
  SegmentPool::Table& table = pool.table(pool.rank_);
  ++table.published;
  futex_wake(table.published);
}

// A member reports that it has come before it reads the ticket again. If that is unchanged, the entry stays as it is
// until this member is done with it.
bool GroupFormation::find() {
  for (std::size_t number = 0; number < SegmentPool::num_entries; ++number) {
    SegmentPool::Entry& entry = pool_->entry(founder_, number);
    const std::uint32_t ticket = entry.ticket;
    if (ticket == 0 || entry.name[0] != name_[0] || entry.name[1] != name_[1]) continue;
    SegmentPool::Member& own = pool_->member(entry, pool_->rank_);
    if (own.done == ticket) continue;  // of an earlier group of that name
    raise_to(own.come, ticket);
    if (entry.ticket != ticket) {
      raise_to(own.done, ticket);
      continue;
    }
    entry_ = &entry;
    ticket_ = ticket;
    offset_ = entry.offset;
    const bool is_within = offset_ <= pool_->stride_ && pool_->held_bytes() + bytes_ <= pool_->stride_ - offset_;
    if (entry.bytes != bytes_ || !is_within) decide(Decision::elsewhere);
    ++entry.arrivals;
    futex_wake(entry.arrivals);
    return true;
  }
  return false;
}

std::vector<int> GroupFormation::missing() const {
  std::vector<int> found;
  for (std::size_t number = 0; number < members_.size(); ++number) {
    const int rank = members_[number];
    const bool is_here = entry_ != nullptr ? pool_->member(*entry_, rank).come == ticket_ : rank != founder_;
    if (!is_here && rank != pool_->rank_) found.push_back(static_cast<int>(number));
  }
  return found;
}

std::vector<int> GroupFormation::ended() const {
  std::vector<int> found;
  if (decision_ != Decision::open) return found;
  for (std::size_t number = 0; number < members_.size(); ++number) {
    const int rank = members_[number];
    if (rank != pool_->rank_ && pool_->peers_.has_ended(rank)) found.push_back(static_cast<int>(number));
  }
  return found;
}

void GroupFormation::decide(Decision decision) {
  auto none = static_cast<std::uint32_t>(Decision::open);
  if (!entry_->decision.compare_exchange_strong(none, static_cast<std::uint32_t>(decision))) return;
  futex_wake(entry_->decision);
  ++entry_->arrivals;
  futex_wake(entry_->arrivals);
}

// The futex word for what this member waits for.
std::atomic<std::uint32_t>& GroupFormation::word() const {
  if (entry_ == nullptr) return pool_->table(founder_).published;
  return is_first() ? entry_->arrivals : entry_->decision;
}

Decision GroupFormation::published_decision() const { return static_cast<Decision>(entry_->decision.load()); }

Decision GroupFormation::wait(double seconds, const std::function<bool()>& interrupted) {
  const double until = now() + seconds;
  Yields yields(most_yields);
  while (decision_ == Decision::open) {
    std::atomic<std::uint32_t>& awaited = word();
    const std::uint32_t seen = awaited;
    if (entry_ == nullptr && find()) continue;
    if (entry_ != nullptr) {
      if (is_first() && missing().empty()) decide(offset_ != 0 ? Decision::here : Decision::elsewhere);
      if (published_decision() != Decision::open) {
        settle();
        break;
      }
    }
    if (yields.once()) continue;
    futex_wait(awaited, seen, std::min(nap, until - now()));
    if (interrupted()) throw Interrupted();
    if (now() >= until || !ended().empty()) break;
  }
  return decision_;
}

// Takes over the published decision.
void GroupFormation::settle() {
  decision_ = published_decision();
  takes_ = decision_ == Decision::here;
  if (is_first()) withdraw();
  raise_to(pool_->member(*entry_, pool_->rank_).done, ticket_);
}

// No member looks for the entry of a group that exists; the segment of one that does not is freed.
void GroupFormation::withdraw() {
  SegmentPool& pool = *pool_;
  const std::lock_guard<std::mutex> alone(pool.mutex_);
  pool.busy_[number_] = false;
  if (decision_ == Decision::here) entry_->ticket = 0;
  else if (offset_ != 0) pool.give_back(offset_);
}

std::shared_ptr<std::byte> GroupFormation::take() {
  if (!std::exchange(takes_, false) || decision_ != Decision::here) return nullptr;
  const auto release = [pool = pool_, founder = founder_, offset = offset_](std::byte*) {
    if (pool->forks_ != fork_count()) return;
    pool->held(founder, offset)[pool->rank_].store(0, std::memory_order_release);
    if (founder != pool->rank_) return;
    const std::lock_guard<std::mutex> alone(pool->mutex_);
    pool->left_.push_back(offset);
    pool->sweep();
  };
  return {pool_->part(founder_) + offset_ + pool_->held_bytes(), release};
}

void GroupFormation::leave() {
  if (pool_->forks_ != fork_count()) return;
  if (decision_ == Decision::open) {
    if (entry_ == nullptr) {
      decision_ = Decision::elsewhere;
    } else {
      decide(Decision::elsewhere);
      settle();
    }
  }
}

}  // namespace torsh::shm
