// The levels of processor that the loops are compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

// An attribute on a plain function reaches the loops that are inlined into it. Features are named as
// well: where a compiler is told to leave them out, as by zig, a level's name does not bring them back.
#if defined(__x86_64__)
#define TORSH_V3_FEATURES "avx,avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,popcnt,sahf,xsave"
#define TORSH_V4_FEATURES TORSH_V3_FEATURES ",avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
#define TORSH_V3 __attribute__((target("arch=x86-64-v3," TORSH_V3_FEATURES)))
#define TORSH_V4 __attribute__((target("arch=x86-64-v4," TORSH_V4_FEATURES)))
#else
#define TORSH_V3
#define TORSH_V4
#endif

namespace torsh::kernels {

enum class Level : std::uint8_t { baseline, v3, v4 };

#if defined(__x86_64__)
constexpr std::size_t num_levels = 3;

// The highest level whose instructions this processor and its kernel have.
Level own_level();
#else
constexpr std::size_t num_levels = 1;

inline Level own_level() { return Level::baseline; }
#endif

}  // namespace torsh::kernels
