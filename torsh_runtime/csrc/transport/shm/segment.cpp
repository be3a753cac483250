#include "transport/shm/segment.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "transport/shm/futex.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace torsh::shm {
namespace {

constexpr std::size_t page = 4096;

std::size_t control_bytes(int ranks) {
  const std::size_t bytes = sizeof(Header) + static_cast<std::size_t>(ranks) * sizeof(RankArea);
  return (bytes + page - 1) / page * page;
}

// Present now, so that a lack of memory is an error here and not a SIGBUS in a collective.
void populate(std::byte* from, std::size_t bytes) {
  if (madvise(from, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw std::system_error(errno, std::generic_category(), "no memory for the shared segment");
  for (std::size_t at = 0; at < bytes; at += page) {  // Linux < 5.14
    reinterpret_cast<std::atomic<std::uint32_t>*>(from + at)->fetch_add(0);
  }
}

}  // namespace

std::size_t Segment::bytes_for(int ranks, std::size_t slot_bytes) {
  const std::size_t count = static_cast<std::size_t>(ranks);
  const std::size_t of_rank = 2 * slot_bytes + num_flags * told_bytes + count * (sizeof(RingMemory) + shm::ring_capacity(ranks));
  return control_bytes(ranks) + count * of_rank;
}

Segment::Segment(int descriptor, int rank, int ranks, std::size_t slot_bytes)
    : ranks_(static_cast<std::size_t>(ranks)), slot_bytes_(slot_bytes), length_(bytes_for(ranks, slot_bytes)) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) throw std::system_error(errno, std::generic_category(), "fstat of the shared segment");
  if (static_cast<std::size_t>(status.st_size) < length_) {
    throw std::invalid_argument("the shared segment is smaller than its ranks and slots need");
  }
  void* mapped = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map the shared segment");
  base_ = static_cast<std::byte*>(mapped);
  slots_ = base_ + control_bytes(ranks);
  told_ = slots_ + ranks_ * 2 * slot_bytes;
  rings_ = told_ + ranks_ * num_flags * told_bytes;
  try {
    populate(base_, control_bytes(ranks));
    populate(slot(rank, 0), 2 * slot_bytes_);
  } catch (...) {
    munmap(base_, length_);
    throw;
  }
}

void Segment::prepare_to_tell(int rank) {
  if (!tells_) populate(told(rank, 0), num_flags * told_bytes);
  tells_ = true;
}

void Segment::abandon(int descriptor, int rank, int ranks, int name) {
  const std::size_t bytes = control_bytes(ranks);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "cannot map the shared segment");
  auto* areas = reinterpret_cast<RankArea*>(static_cast<std::byte*>(mapped) + sizeof(Header));
  AbortRecord& account = areas[rank].abort;
  account.kind = FailureKind::aborted;
  account.rank = account.reporter = name;
  account.op = OpKind::barrier;
  std::uint32_t none = 0;
  static_cast<Header*>(mapped)->aborted_by.compare_exchange_strong(none, static_cast<std::uint32_t>(rank) + 1);
  for (int peer = 0; peer < ranks; ++peer) {
    for (Flag& flag : areas[peer].flags) futex_wake(flag.round);
  }
  munmap(mapped, bytes);
}

Segment::~Segment() { munmap(base_, length_); }

}  // namespace torsh::shm
