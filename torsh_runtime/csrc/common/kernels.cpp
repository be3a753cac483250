#include "common/kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/prefetch.hpp"

// The loader picks the clone that fits the processor. Other architectures have one baseline, and
// musl has no ifunc.
#if defined(__x86_64__) && defined(__GLIBC__)
#define TORSH_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TORSH_VECTORISED
#endif
#define TORSH_INLINE inline __attribute__((always_inline))

namespace torsh {
namespace {

template <typename T>
TORSH_INLINE T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // wraps around as numpy does
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

// A NaN on either side is the result, as in numpy.minimum and numpy.maximum.
template <typename T>
TORSH_INLINE T smaller(T a, T b) {
  return (a < b) | (a != a) ? a : b;
}

template <typename T>
TORSH_INLINE T larger(T a, T b) {
  return (a > b) | (a != a) ? a : b;
}

// The kernels go in steps of a few lines, and ask for those they are about to write.
constexpr std::size_t step_bytes = 4 * cache_line;

TORSH_INLINE void prefetch_step(const void* target, std::size_t at) {
  const std::byte* ahead = static_cast<const std::byte*>(target) + at + write_ahead;
  for (std::size_t line = 0; line < step_bytes; line += cache_line) prefetch_for_write(ahead + line);
}

template <typename T, T (*combine)(T, T)>
TORSH_INLINE void reduce(void* dst, void* also, const void* a, const void* b, std::size_t count) {
  constexpr std::size_t step = step_bytes / sizeof(T);
  T* out = static_cast<T*>(dst);
  T* twin = static_cast<T*>(also);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  std::size_t at = 0;
  for (; at + step <= count; at += step) {
    prefetch_step(dst, at * sizeof(T));
    if (twin == nullptr) {
      _Pragma("GCC ivdep") for (std::size_t i = at; i < at + step; ++i) out[i] = combine(x[i], y[i]);
    } else {
      _Pragma("GCC ivdep") for (std::size_t i = at; i < at + step; ++i) twin[i] = out[i] = combine(x[i], y[i]);
    }
  }
  for (; at < count; ++at) {
    out[at] = combine(x[at], y[at]);
    if (twin != nullptr) twin[at] = out[at];
  }
}

}  // namespace

// target_clones needs functions with names of their own, hence macros and not templates.
#define TORSH_REDUCE(name, T, combine)                                                                 \
  TORSH_VECTORISED void name(void* dst, void* also, const void* a, const void* b, std::size_t count) { \
    reduce<T, combine<T>>(dst, also, a, b, count);                                                     \
  }
#define TORSH_DIVIDE(name, T)                                                         \
  TORSH_VECTORISED void name(void* values, std::size_t count, std::size_t divisor) {  \
    T* out = static_cast<T*>(values);                                                 \
    const T by = static_cast<T>(divisor);                                             \
    for (std::size_t i = 0; i < count; ++i) out[i] = out[i] / by;                     \
  }
#define TORSH_KERNELS(suffix, T)           \
  TORSH_REDUCE(sum_##suffix, T, add)       \
  TORSH_REDUCE(min_##suffix, T, smaller)   \
  TORSH_REDUCE(max_##suffix, T, larger)    \
  TORSH_DIVIDE(divide_##suffix, T)

TORSH_KERNELS(float32, float)
TORSH_KERNELS(float64, double)
TORSH_KERNELS(int32, std::int32_t)
TORSH_KERNELS(int64, std::int64_t)

TORSH_VECTORISED void copy_shared(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + step_bytes <= bytes; at += step_bytes) {
    prefetch_step(to, at);
    for (std::size_t line = 0; line < step_bytes; line += cache_line) __builtin_prefetch(from + at + read_ahead + line);
    std::memcpy(to + at, from + at, step_bytes);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

ReduceKernel reduce_kernel(DType type, ReduceOp op) {
  static constexpr ReduceKernel kernels[4][3] = {
      {sum_float32, min_float32, max_float32},
      {sum_float64, min_float64, max_float64},
      {sum_int32, min_int32, max_int32},
      {sum_int64, min_int64, max_int64},
  };
  const int column = op == ReduceOp::min ? 1 : op == ReduceOp::max ? 2 : 0;
  return kernels[static_cast<int>(type)][column];
}

DivideKernel divide_kernel(DType type) {
  static constexpr DivideKernel kernels[4] = {divide_float32, divide_float64, divide_int32, divide_int64};
  return kernels[static_cast<int>(type)];
}

void Reduction::operator()(std::span<std::byte* const> targets, const std::byte* const* sources,
                           std::size_t count) const {
  if (sources_ == 2 && divide_ == nullptr && targets.size() <= 2) {
    return combine_(targets[0], targets.size() == 2 ? targets[1] : nullptr, sources[0], sources[1], count);
  }
  // Pieces that stay in the first-level cache while one source after the other is added to them.
  alignas(cache_line) std::byte piece[8 * 1024];
  for (std::size_t at = 0; at < count * element_; at += sizeof piece) {
    const std::size_t bytes = std::min(count * element_ - at, sizeof piece);
    reduce_piece(piece, sources, at, bytes / element_);
    for (std::byte* target : targets) std::memcpy(target + at, piece, bytes);
  }
}

void Reduction::reduce_piece(std::byte* result, const std::byte* const* sources, std::size_t at,
                             std::size_t count) const {
  const std::byte* so_far = sources[0] + at;
  if (sources_ == 1) std::memcpy(result, so_far, count * element_);
  for (std::size_t s = 1; s < sources_; ++s) {
    combine_(result, nullptr, so_far, sources[s] + at, count);
    so_far = result;
  }
  if (divide_ != nullptr) divide_(result, count, sources_);
}

}  // namespace torsh
