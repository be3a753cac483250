// Making memory present before it is used.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>

#include "common/pages.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace torsh::shm {

// Whole pages of shared memory; so that a lack of it is an error here and not a SIGBUS in a collective.
// Throws std::system_error.
inline void populate(std::byte* from, std::size_t bytes) {
  if (madvise(from, bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) throw std::system_error(errno, std::generic_category(), "no memory for the shared segment");
  for (std::size_t at = 0; at < bytes; at += least_page) {  // Linux < 5.14
    reinterpret_cast<std::atomic<std::uint32_t>*>(from + at)->fetch_add(0);
  }
}

// Whether what is mapped becomes present when it is used; not if the program has asked the system to make
// all of it present at once (mlockall(2), MCL_FUTURE).
inline bool maps_lazily() {
  void* const probe = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe == MAP_FAILED) return false;
  unsigned char present[page / least_page] = {};
  const bool is_lazy = mincore(probe, page, present) == 0 && (present[0] & 1) == 0;
  munmap(probe, page);
  return is_lazy;
}

}  // namespace torsh::shm
