// Element types, reductions and the description of one collective call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace torsh {

enum class DType : std::uint8_t { float32, float64, int32, int64 };
enum class ReduceOp : std::uint8_t { sum, avg, min, max };
enum class OpKind : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, barrier };

constexpr std::size_t size_of(DType type) {
  return type == DType::float32 || type == DType::int32 ? 4 : 8;
}

// What one rank asked for; ranks compare these to find out that they disagree.
struct Call {
  static constexpr std::size_t max_dims = 6;

  OpKind kind{};
  DType dtype{};
  ReduceOp op{};
  std::uint8_t dims = 0;  // may exceed max_dims: then only the first ones are kept
  std::int32_t root = -1;
  std::uint64_t count = 0;
  std::array<std::uint64_t, max_dims> shape{};

  std::uint64_t fingerprint() const {
    std::uint64_t mixed = 0x9E3779B97F4A7C15ull ^ count;
    for (std::size_t i = 0; i < max_dims && i < dims; ++i) {
      mixed = mixed * 0xD1342543DE82EF95ull + shape[i];
      mixed ^= mixed >> 32;
    }
    const std::uint64_t head = static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 |
                               static_cast<std::uint64_t>(op) << 16 | static_cast<std::uint64_t>(dims) << 24 |
                               static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
    return mixed ^ head * 0xD6E8FEB86659FD93ull;
  }
};
static_assert(sizeof(Call) == 64, "one cache line");

}  // namespace torsh
