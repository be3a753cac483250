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

}  // namespace torsh::shm
