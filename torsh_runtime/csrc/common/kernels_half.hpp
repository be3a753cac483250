// float16 and bfloat16: conversions to and from float32, and loops on the instructions for it.
#pragma once

#include <algorithm>

#include "common/kernels_loops.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace torsh::kernels {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

TORSH_INLINE float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
TORSH_INLINE std::uint32_t as_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

template <>
struct Element<Bfloat16> {
  using Value = float;
  TORSH_INLINE static float load(Bfloat16 element) { return as_float(std::uint32_t{element.bits} << 16); }
  TORSH_INLINE static Bfloat16 store(float value) { return {static_cast<std::uint16_t>(rounded(value) >> 16)}; }

  // To the nearest, of two to the even one. Of a settled NaN the lower half is 0: it stays one.
  TORSH_INLINE static std::uint32_t rounded(float value) {
    const std::uint32_t bits = as_bits(settled(value));
    return bits + 0x7FFF + (bits >> 16 & 1);
  }
};

// Pair for bfloat16, of which A and Out may be float32. It takes two at a time as one word, which
// saves the shuffling. float32 are in an order of their own: in each step, those of the elements
// 0, 2, 4, …, then those of 1, 3, 5, ….
template <typename A, typename Out, typename Op>
struct Bfloat16Pair {
  static constexpr std::size_t step = step_bytes / sizeof(Bfloat16);
  using Word __attribute__((may_alias, aligned(2))) = std::uint32_t;
  using Half = Element<Bfloat16>;

  TORSH_INLINE static void run(std::byte* out, std::byte* also, const std::byte* a, const std::byte* b,
                               std::size_t count, const Weights& weights) {
    const Op op(weights);
    for (; count >= step; count -= step) {
      prefetch_step(out);
      combine(out, a, b, step, op);
      if (also != nullptr) also = copied(also, out, step * sizeof(Out));
      out += step * sizeof(Out);
      a += step * sizeof(A);
      b += step * sizeof(Bfloat16);
    }
    combine(out, a, b, count, op);
    if (also != nullptr) copied(also, out, count * sizeof(Out));
  }

 private:
  TORSH_INLINE static void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                                   const Op& op) {
    const std::size_t words = count / 2;
    const Word* y = reinterpret_cast<const Word*>(b);
    TORSH_IN_PLACE for (std::size_t i = 0; i < words; ++i) {
      const float even = op(even_of(reinterpret_cast<const A*>(a), i), as_float(y[i] << 16));
      const float odd = op(odd_of(reinterpret_cast<const A*>(a), i, words), as_float(y[i] & 0xFFFF0000));
      put(reinterpret_cast<Out*>(out), i, words, even, odd);
    }
    if (count % 2 == 0) return;
    const std::size_t end = count - 1;
    const float x = Element<A>::load(reinterpret_cast<const A*>(a)[end]);
    const float value = op(x, Half::load(reinterpret_cast<const Bfloat16*>(b)[end]));
    reinterpret_cast<Out*>(out)[end] = Element<Out>::store(value);
  }

  TORSH_INLINE static float even_of(const float* values, std::size_t i) { return values[i]; }
  TORSH_INLINE static float odd_of(const float* values, std::size_t i, std::size_t words) { return values[words + i]; }
  TORSH_INLINE static void put(float* out, std::size_t i, std::size_t words, float even, float odd) {
    out[i] = even;
    out[words + i] = odd;
  }

  TORSH_INLINE static float even_of(const Bfloat16* values, std::size_t i) {
    return as_float(reinterpret_cast<const Word*>(values)[i] << 16);
  }
  TORSH_INLINE static float odd_of(const Bfloat16* values, std::size_t i, std::size_t) {
    return as_float(reinterpret_cast<const Word*>(values)[i] & 0xFFFF0000);
  }
  TORSH_INLINE static void put(Bfloat16* out, std::size_t i, std::size_t, float even, float odd) {
    reinterpret_cast<Word*>(out)[i] = Half::rounded(even) >> 16 | (Half::rounded(odd) & 0xFFFF0000);
  }
};

template <>
struct Element<Float16> {
  using Value = float;
#if defined(__ARM_FP16_FORMAT_IEEE)
  TORSH_INLINE static float load(Float16 element) { return std::bit_cast<__fp16>(element.bits); }
  TORSH_INLINE static Float16 store(float value) {
    return {std::bit_cast<std::uint16_t>(static_cast<__fp16>(settled(value)))};
  }
#else
  // Exponents 1–30 are moved from a bias of 15 to one of 127, 31 further; with 0, the rest counts
  // in units of 2^-24, which the conversion from integer gets right where denormals are flushed.
  TORSH_INLINE static float load(Float16 element) {
    const std::int32_t magnitude = element.bits & 0x7FFF;
    const std::uint32_t bits = static_cast<std::uint32_t>(magnitude), sign = (element.bits & 0x8000u) << 16;
    const std::uint32_t normal = (bits << 13) + chosen(magnitude < 0x7C00, 112u << 23, 224u << 23);
    const std::uint32_t small = as_bits(static_cast<float>(magnitude) * 0x1p-24f);
    const std::uint32_t quiet = chosen(magnitude > 0x7C00, 1u << 22, 0);
    return as_float(chosen(magnitude < 0x400, small, normal | quiet) | sign);
  }

  // To the nearest, of two to the even one. What is below 2^-14 is rounded to multiples of 2^-24 by
  // adding a number whose last bit that is.
  TORSH_INLINE static Float16 store(float value) {
    const std::uint32_t bits = as_bits(value) & 0x7FFFFFFF, sign = as_bits(value) >> 16 & 0x8000;
    const std::int32_t magnitude = static_cast<std::int32_t>(bits);
    const std::uint32_t normal = (bits - (112u << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
    const std::uint32_t small = as_bits(as_float(bits) + 0.5f) - as_bits(0.5f);
    const std::uint32_t finite = chosen(magnitude < 113 << 23, small, normal);
    const std::uint32_t number = chosen(magnitude < 0x477FF000, finite, 0x7C00) | sign;
    return {static_cast<std::uint16_t>(chosen(magnitude > 255 << 23, 0x7E00, number))};
  }

 private:
  // Without a branch, so that there can be vectors of it.
  TORSH_INLINE static std::uint32_t chosen(bool condition, std::uint32_t yes, std::uint32_t no) {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (yes & mask) | (no & ~mask);
  }
#endif
};

#if defined(__x86_64__)

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// Compilers make no vectors of float16, so blocks of it are converted by hand.
template <Level level>
struct Blocks;

template <>
struct Blocks<Level::v3> {
  template <std::size_t elements>
  TORSH_V3 static void widen(const Float16* from, float* to) {
    for (std::size_t i = 0; i < elements; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
  template <std::size_t elements>
  TORSH_V3 static void narrow(const float* from, Float16* to) {
    for (std::size_t i = 0; i < elements; i += 8) {
      const __m256 values = _mm256_loadu_ps(from + i);
      const __m256 settled = _mm256_blendv_ps(values, _mm256_set1_ps(nan), _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
      const __m128i halves = _mm256_cvtps_ph(settled, _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
    }
  }
};

template <>
struct Blocks<Level::v4> {
  template <std::size_t elements>
  TORSH_V4 static void widen(const Float16* from, float* to) {
    for (std::size_t i = 0; i < elements; i += 16) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(all, halves));
    }
  }
  template <std::size_t elements>
  TORSH_V4 static void narrow(const float* from, Float16* to) {
    for (std::size_t i = 0; i < elements; i += 16) {
      const __m512 settled =
          _mm512_fixupimm_ps(_mm512_set1_ps(nan), _mm512_loadu_ps(from + i), _mm512_set1_epi32(first_for_nan), 0);
      const __m256i halves = _mm512_maskz_cvtps_ph(all, settled, _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), halves);
    }
  }

 private:
  static constexpr int first_for_nan = 0x11111100;  // of the table's 8 kinds of numbers, 0 and 1 are NaN
  static constexpr __mmask16 all = 0xFFFF;          // GCC warns of what the unmasked ones leave undefined
};

// Pair for float16, of which A and Out may be float32.
template <Level level, typename A, typename Out, typename Op>
struct Float16Pair {
  static constexpr std::size_t step = step_bytes / sizeof(Float16), small_step = 16;

  TORSH_INLINE static void run(std::byte* out, std::byte* also, const std::byte* a, const std::byte* b,
                               std::size_t count, const Weights& weights) {
    const Op op(weights);
    for (; count >= step; count -= step) {
      prefetch_step(out);
      combine<step>(out, a, b, op);
      if (also != nullptr) also = copied(also, out, step * sizeof(Out));
      out += step * sizeof(Out);
      a += step * sizeof(A);
      b += step * sizeof(Float16);
    }
    for (std::size_t at = 0; at < count; at += small_step) {
      const std::size_t left = std::min(count - at, small_step);
      padded(out + at * sizeof(Out), a + at * sizeof(A), b + at * sizeof(Float16), left, op);
    }
    if (also != nullptr) copied(also, out, count * sizeof(Out));
  }

 private:
  template <std::size_t elements>
  TORSH_INLINE static void combine(std::byte* out, const std::byte* a, const std::byte* b, const Op& op) {
    alignas(cache_line) float wide_a[elements], wide_b[elements], wide_out[elements];
    const float* x = widened<elements>(reinterpret_cast<const A*>(a), wide_a);
    const float* y = widened<elements>(reinterpret_cast<const Float16*>(b), wide_b);
    for (std::size_t i = 0; i < elements; ++i) wide_out[i] = op(x[i], y[i]);
    if constexpr (std::is_same_v<Out, float>) {
      std::memcpy(out, wide_out, sizeof wide_out);
    } else {
      Blocks<level>::template narrow<elements>(wide_out, reinterpret_cast<Float16*>(out));
    }
  }

  template <std::size_t>
  TORSH_INLINE static const float* widened(const float* values, float*) {
    return values;
  }
  template <std::size_t elements>
  TORSH_INLINE static const float* widened(const Float16* values, float* wide) {
    Blocks<level>::template widen<elements>(values, wide);
    return wide;
  }

  TORSH_INLINE static void padded(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count,
                                  const Op& op) {
    alignas(cache_line) std::byte whole_a[small_step * sizeof(A)] = {}, whole_b[small_step * sizeof(Float16)] = {};
    alignas(cache_line) std::byte whole_out[small_step * sizeof(Out)];
    std::memcpy(whole_a, a, count * sizeof(A));
    std::memcpy(whole_b, b, count * sizeof(Float16));
    combine<small_step>(whole_out, whole_a, whole_b, op);
    std::memcpy(out, whole_out, count * sizeof(Out));
  }
};

#endif

}  // namespace torsh::kernels
