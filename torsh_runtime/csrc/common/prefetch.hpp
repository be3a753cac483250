// Asking for cache lines before they are needed.
#pragma once

#include <cstddef>

namespace torsh {

constexpr std::size_t cache_line = 64;
// How far ahead of the bytes being written, and of those being read.
constexpr std::size_t write_ahead = 1024, read_ahead = 2048;

// For writing: with plain stores each line costs a round trip to the processor that read it last,
// and stores wait for that in order. An address beyond the buffer does no harm.
// (__builtin_prefetch for writing becomes one for reading on the x86-64 baseline.)
inline void prefetch_for_write(const std::byte* at) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*at));
#else
  __builtin_prefetch(at, 1);
#endif
}

}  // namespace torsh
