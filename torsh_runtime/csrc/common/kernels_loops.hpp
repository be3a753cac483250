// The loops behind Reduction: every elementwise step, compiled for each level of processor.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/kernels.hpp"
#include "common/kernels_level.hpp"
#include "common/prefetch.hpp"

#define TORSH_INLINE inline __attribute__((always_inline))
// On a loop whose output is, exactly, one of the inputs or none of them.
#if defined(__clang__)
#define TORSH_IN_PLACE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TORSH_IN_PLACE _Pragma("GCC ivdep")
#endif

namespace torsh::kernels {

template <typename Loop>
struct Built {
  using Bytes = std::byte*;
  using Source = const std::byte*;

  static void baseline(Bytes out, Bytes also, Source a, Source b, std::size_t count, const Weights& weights) {
    Loop::run(out, also, a, b, count, weights);
  }
  TORSH_V3 static void v3(Bytes out, Bytes also, Source a, Source b, std::size_t count, const Weights& weights) {
    Loop::run(out, also, a, b, count, weights);
  }
  TORSH_V4 static void v4(Bytes out, Bytes also, Source a, Source b, std::size_t count, const Weights& weights) {
    Loop::run(out, also, a, b, count, weights);
  }
};

template <Level level, typename Loop>
constexpr Kernel built() {
  if constexpr (level == Level::v4) return &Built<Loop>::v4;
  if constexpr (level == Level::v3) return &Built<Loop>::v3;
  if constexpr (level == Level::baseline) return &Built<Loop>::baseline;
}

// ---- Elements: what is in the buffers, and the value it is computed with.

template <typename T>
struct Complex {
  T real, imaginary;
};

// Which of two NaNs comes out of a sum, or with what sign, is up to the processor and the compiler's
// order of operands. Here it is always the same one.
template <typename T>
TORSH_INLINE T settled(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value != value ? std::numeric_limits<T>::quiet_NaN() : value;
  } else {
    return value;
  }
}
template <typename T>
TORSH_INLINE Complex<T> settled(Complex<T> value) {
  return {settled(value.real), settled(value.imaginary)};
}

template <typename T>
struct Element {
  using Value = T;
  TORSH_INLINE static T load(T element) { return element; }
  TORSH_INLINE static T store(T value) { return settled(value); }
};

// One bit in a byte; whatever is not 0 counts as 1.
struct Bool {
  std::uint8_t byte;
};
template <>
struct Element<Bool> {
  using Value = std::uint8_t;
  TORSH_INLINE static Value load(Bool element) { return element.byte != 0; }
  TORSH_INLINE static Bool store(Value value) { return {value}; }
};

// ---- Reductions: called with two values, or with the only one.

// What an integer is added, multiplied and shifted as, so that it wraps around.
template <typename T>
using Wrapping = std::make_unsigned_t<std::conditional_t<sizeof(T) < sizeof(int), int, T>>;

template <typename T>
TORSH_INLINE T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  } else {
    return a + b;
  }
}

struct Unweighted {
  explicit Unweighted(const Weights&) {}
};

template <typename T>
struct Sum : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return add(a, b); }
};

template <typename T>
struct Product : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};

template <typename T>
struct Product<Complex<T>> {
  // Of a difference next to a sum GCC 12 makes vfmaddsub, whatever -ffp-contract says, which rounds
  // once less. It does not with a sign that it cannot know.
  explicit Product(const Weights& weights) : plus_(static_cast<T>(weights.a)), minus_(-plus_) {}
  TORSH_INLINE Complex<T> operator()(Complex<T> a, Complex<T> b) const {
    return {a.real * b.real + minus_ * (a.imaginary * b.imaginary),
            a.real * b.imaginary + plus_ * (a.imaginary * b.real)};
  }

 private:
  T plus_, minus_;  // 1 and -1
};

// A NaN on either side is the result, as in numpy.minimum and numpy.maximum.
template <typename T>
struct Min : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return ((a < b) | (a != a)) ? a : b; }
};

template <typename T>
struct Max : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return ((a > b) | (a != a)) ? a : b; }
};

template <typename T>
struct And : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return a & b; }
};

template <typename T>
struct Or : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return a | b; }
};

template <typename T>
struct Xor : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a, T b) const { return a ^ b; }
};

template <typename T>
struct Same : Unweighted {
  using Unweighted::Unweighted;
  TORSH_INLINE T operator()(T a) const { return a; }
};

// Floating point, each source and the result times a number. A weight of 1 changes no bit.
template <typename T>
struct Scaled {
  explicit Scaled(const Weights& weights)
      : a_(static_cast<T>(weights.a)), b_(static_cast<T>(weights.b)), result_(static_cast<T>(weights.result)) {}
  TORSH_INLINE T operator()(T a, T b) const { return (a * a_ + b * b_) * result_; }
  TORSH_INLINE T operator()(T a) const { return a * a_ * result_; }

 private:
  T a_, b_, result_;
};

template <typename T>
struct Divided {
  // Wide enough for quotients that round to the right integer, and there are vectors of it; there
  // is no such type for 64 bits.
  using Wide = std::conditional_t<std::is_floating_point_v<T> || sizeof(T) == 8, T,
                                  std::conditional_t<sizeof(T) == 4, double, float>>;

  explicit Divided(const Weights& weights) : divisor_(static_cast<Wide>(weights.divisor)) {}
  TORSH_INLINE T operator()(T a, T b) const { return (*this)(add(a, b)); }
  TORSH_INLINE T operator()(T a) const { return static_cast<T>(static_cast<Wide>(a) / divisor_); }

 private:
  Wide divisor_;
};

// Integers divided by a power of two, at most 2^20, towards zero.
template <typename T>
struct Shifted {
  using Wide = std::conditional_t<sizeof(T) == 8, T,
                                  std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>>;

  explicit Shifted(const Weights& weights)
      : mask_(static_cast<Wide>(weights.divisor - 1)), shift_(std::countr_zero(weights.divisor)) {}
  TORSH_INLINE T operator()(T a, T b) const { return (*this)(add(a, b)); }
  TORSH_INLINE T operator()(T a) const {
    Wide value = a;
    if constexpr (std::is_signed_v<T>) value += (value >> (8 * sizeof(Wide) - 1)) & mask_;
    return static_cast<T>(value >> shift_);
  }

 private:
  Wide mask_;
  int shift_;
};

// A reduction of one source: b is not read.
template <typename T, typename Op>
struct Alone : Op {
  using Op::Op;
  TORSH_INLINE T operator()(T a, T) const { return Op::operator()(a); }
};

// ---- Loops. They go in steps of a few lines, and ask for those they are about to write.

constexpr std::size_t step_bytes = 4 * cache_line;

TORSH_INLINE void prefetch_step(const std::byte* target) {
  for (std::size_t line = 0; line < step_bytes; line += cache_line) prefetch_for_write(target + write_ahead + line);
}

TORSH_INLINE std::byte* copied(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return to + bytes;
}

// out[i] = a[i] op b[i], and the same into `also` unless that is null.
template <typename A, typename B, typename Out, typename Op>
struct Pair {
  static constexpr std::size_t step = step_bytes / sizeof(Out);

  TORSH_INLINE static void run(std::byte* out, std::byte* also, const std::byte* a, const std::byte* b,
                               std::size_t count, const Weights& weights) {
    const Op op(weights);
    for (; count >= step; count -= step) {
      prefetch_step(out);
      combine(out, a, b, step, op);
      if (also != nullptr) also = copied(also, out, step_bytes);
      out += step_bytes;
      a += step * sizeof(A);
      b += step * sizeof(B);
    }
    combine(out, a, b, count, op);
    if (also != nullptr) copied(also, out, count * sizeof(Out));
  }

 private:
  TORSH_INLINE static void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                                   const Op& op) {
    Out* to = reinterpret_cast<Out*>(out);
    const A* x = reinterpret_cast<const A*>(a);
    const B* y = reinterpret_cast<const B*>(b);
    TORSH_IN_PLACE for (std::size_t i = 0; i < count; ++i) {
      to[i] = Element<Out>::store(op(Element<A>::load(x[i]), Element<B>::load(y[i])));
    }
  }
};

template <typename E>
struct Copy {
  TORSH_INLINE static void run(std::byte* out, std::byte* also, const std::byte* a, const std::byte*,
                               std::size_t count, const Weights&) {
    if (out != a) copy(out, a, count * sizeof(E));
    if (also != nullptr && also != a) copy(also, a, count * sizeof(E));
  }

 private:
  TORSH_INLINE static void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    for (; bytes >= step_bytes; bytes -= step_bytes) {
      prefetch_step(to);
      for (std::size_t line = 0; line < step_bytes; line += cache_line) __builtin_prefetch(from + read_ahead + line);
      std::memcpy(to, from, step_bytes);
      to += step_bytes;
      from += step_bytes;
    }
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
};

// ---- Steps.

// The loop for these types at this level; there may be better ones than Pair.
template <Level level, typename A, typename B, typename Out, typename Op>
struct Best {
  using Loop = Pair<A, B, Out, Op>;
};

template <Level level, typename A, typename B, typename Out, typename Op>
constexpr Kernel pair() {
  return built<level, typename Best<level, A, B, Out, Op>::Loop>();
}

// A reduction that leaves a single source as it is. Between the stages halves are float32.
template <Level level, typename E, typename Op>
constexpr Steps plain() {
  using Value = std::conditional_t<std::is_same_v<typename Element<E>::Value, float>, float, E>;
  return {built<level, Copy<E>>(),
          pair<level, E, E, E, Op>(),
          pair<level, E, E, Value, Op>(),
          pair<level, Value, E, Value, Op>(),
          pair<level, Value, E, E, Op>(),
          sizeof(E),
          sizeof(Value)};
}

// One that does something to the result of `fold`, and to a single source too.
template <Level level, typename E, typename Op>
constexpr Steps finished(Steps fold) {
  using Value = typename Element<E>::Value;
  const Steps whole = plain<level, E, Op>();
  return {pair<level, E, E, E, Alone<Value, Op>>(), whole.both, fold.first, fold.middle, whole.last,
          fold.unit, fold.between};
}

}  // namespace torsh::kernels
