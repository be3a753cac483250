// The units of memory.
#pragma once

#include <cstddef>

namespace torsh {

// Of all systems, and so what pieces are cut into.
constexpr std::size_t least_page = 4 << 10;

// The system's own may be smaller: what is mapped or given back by itself takes whole ones of these.
#if defined(__aarch64__) || defined(__powerpc64__)
constexpr std::size_t page = 64 << 10;
#else
constexpr std::size_t page = least_page;
#endif

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace torsh
