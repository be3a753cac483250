#include "common/kernels.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

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

}  // namespace

// target_clones needs functions with names of their own, hence macros and not templates.
#define TORSH_REDUCE(name, T, combine)                                                         \
  TORSH_VECTORISED void name(void* dst, const void* a, const void* b, std::size_t count) {     \
    T* out = static_cast<T*>(dst);                                                             \
    const T* x = static_cast<const T*>(a);                                                     \
    const T* y = static_cast<const T*>(b);                                                     \
    _Pragma("GCC ivdep") for (std::size_t i = 0; i < count; ++i) out[i] = combine<T>(x[i], y[i]); \
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

void Reduction::operator()(std::byte* dst, const std::byte* const* sources, std::size_t count) const {
  if (sources_ == 1) {
    std::memmove(dst, sources[0], count * element_);
  } else if (sources_ == 2) {
    combine_(dst, sources[0], sources[1], count);
  } else {
    // Tiles that stay in the first-level cache while the other sources are added to them.
    constexpr std::size_t tile_bytes = 8 * 1024;
    const std::size_t tile = tile_bytes / element_;
    for (std::size_t begin = 0; begin < count; begin += tile) {
      const std::size_t length = count - begin < tile ? count - begin : tile;
      const std::size_t at = begin * element_;
      combine_(dst + at, sources[0] + at, sources[1] + at, length);
      for (std::size_t s = 2; s < sources_; ++s) combine_(dst + at, dst + at, sources[s] + at, length);
    }
  }
  if (divide_ != nullptr) divide_(dst, count, sources_);
}

}  // namespace torsh
