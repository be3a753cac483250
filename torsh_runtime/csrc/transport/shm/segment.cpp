#include "transport/shm/segment.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/pages.hpp"
#include "transport/shm/futex.hpp"
#include "transport/shm/populate.hpp"

namespace torsh::shm {
namespace {

// One more than are used, so that the flags of one round do not all map to one set of a cache.
std::size_t flags_stride(int ranks) { return crowded_flags(ranks) + 1; }

std::size_t areas_bytes(int ranks) { return sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(RankArea); }

std::size_t control_bytes(int ranks) {
  return round_up(areas_bytes(ranks) + static_cast<std::size_t>(ranks) * flags_stride(ranks) * sizeof(Flag), page);
}

Flag* first_flag(std::byte* memory, int ranks) { return reinterpret_cast<Flag*>(memory + areas_bytes(ranks)); }

}  // namespace

std::size_t Segment::bytes_for(int ranks, std::size_t slot_bytes) {
  const std::size_t count = static_cast<std::size_t>(ranks);
  const std::size_t of_rank = 2 * slot_bytes + count * (sizeof(RingMemory) + shm::ring_capacity(ranks));
  return control_bytes(ranks) + count * of_rank;
}

std::shared_ptr<std::byte> map_segment(int descriptor, std::size_t bytes) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat of the shared segment");
  if (static_cast<std::size_t>(status.st_size) < bytes) {
    throw std::invalid_argument("the shared segment is smaller than its ranks and slots need");
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map the shared segment");
  return {static_cast<std::byte*>(mapped), [bytes](std::byte* base) { munmap(base, bytes); }};
}

Segment::Segment(std::shared_ptr<std::byte> memory, int rank, int ranks, std::size_t slot_bytes)
    : memory_(std::move(memory)),
      rank_(rank),
      ranks_(static_cast<std::size_t>(ranks)),
      slot_bytes_(slot_bytes),
      flags_stride_(flags_stride(ranks)),
      flags_(first_flag(base(), ranks)) {
  slots_ = base() + control_bytes(ranks);
  rings_ = slots_ + ranks_ * 2 * slot_bytes;
  populate(base(), control_bytes(ranks));
}

// Extends by at least the same size again, so that growing operations do not allocate page by page.
void Segment::extend_slot(unsigned parity, std::size_t bytes) {
  const std::size_t present = present_[parity];
  const std::size_t wanted = std::min(round_up(std::max(bytes, 2 * present), page), slot_bytes_);
  populate(slot(rank_, parity) + present, wanted - present);
  present_[parity] = wanted;
}

void Segment::abandon(std::byte* memory, int rank, int ranks, int name) {
  auto* areas = reinterpret_cast<RankArea*>(memory + sizeof(Header));
  AbortRecord& account = areas[rank].abort;
  account.kind = FailureKind::aborted;
  account.rank = account.reporter = name;
  account.op = OpKind::barrier;
  std::uint32_t none = 0;
  reinterpret_cast<Header*>(memory)->aborted_by.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
  Flag* flags = first_flag(memory, ranks);
  for (std::size_t i = 0; i < static_cast<std::size_t>(ranks) * flags_stride(ranks); ++i) futex_wake(flags[i].round);
}

void Segment::abandon(int descriptor, int rank, int ranks, int name) {
  abandon(map_segment(descriptor, control_bytes(ranks)).get(), rank, ranks, name);
}

}  // namespace torsh::shm
