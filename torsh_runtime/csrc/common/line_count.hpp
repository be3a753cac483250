// How many cache lines a rank has to get from other ranks' processors: counted in the core's tests
// (TORSH_COUNT_LINES) for the thread that is the rank, and nowhere else.
#pragma once

#include <cstddef>

#include "common/prefetch.hpp"

namespace torsh {

#if defined(TORSH_COUNT_LINES)
inline thread_local std::size_t fetched_lines = 0;
inline void count_line() { ++fetched_lines; }
inline void count_lines(std::size_t bytes) { fetched_lines += (bytes + cache_line - 1) / cache_line; }
#else
inline void count_line() {}
inline void count_lines(std::size_t) {}
#endif

}  // namespace torsh
