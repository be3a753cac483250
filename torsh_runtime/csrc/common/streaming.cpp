#include "common/streaming.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/pages.hpp"
#include "common/prefetch.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace torsh {

#if defined(__SSE2__)

namespace {

constexpr std::size_t pages = 4, prefetched = 4 * cache_line;

void stream_line(std::byte* to, const std::byte* from) {
  for (std::size_t at = 0; at < cache_line; at += sizeof(__m128i)) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), value);
  }
}

// Several pages in turn: so many rows of the memory, and streams of the prefetcher, are open at once.
void stream_pages(std::byte* to, const std::byte* from) {
  for (std::size_t at = 0; at < least_page; at += 2 * cache_line) {
    for (std::size_t start = 0; start < pages * least_page; start += least_page) {
      for (std::size_t line = start + at; line < start + at + 2 * cache_line; line += cache_line) {
        __builtin_prefetch(from + line + prefetched);
        stream_line(to + line, from + line);
      }
    }
  }
}

}  // namespace

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % cache_line;
  const std::size_t head = std::min(bytes, (cache_line - misaligned) % cache_line);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + pages * least_page <= bytes; at += pages * least_page) stream_pages(to + at, from + at);
  for (; at + cache_line <= bytes; at += cache_line) stream_line(to + at, from + at);
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // these stores keep no order by themselves
}

#else

void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace torsh
