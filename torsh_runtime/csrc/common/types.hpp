// The description of one collective call.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/enumerations.hpp"  // made of torsh_runtime/enumerations.py

namespace torsh {

// The integer type of so many bytes, a power of two, of the kind of int8 or uint8.
constexpr DType sized(DType byte, std::size_t size) {
  return static_cast<DType>(static_cast<int>(byte) + std::countr_zero(size));
}

constexpr std::size_t size_of(DType type) {
  return item_bytes[static_cast<std::size_t>(type)];
}

// A contiguous buffer, in bytes.
struct Piece {
  std::byte* data;
  std::size_t bytes;
};
// One for each rank, in order of rank: cuts of one array, or arrays of their own.
using Pieces = std::span<const Piece>;

// One rank's call. Ranks compare calls to find disagreements.
struct Call {
  static constexpr std::size_t max_dims = 6;
  static constexpr std::int32_t of_list = of_list_root;  // in `root`: a list of arrays, which has no root

  OpKind kind{};
  DType dtype{};
  ReduceOp op{};
  std::uint8_t dims = 0;  // may exceed max_dims: then only the first ones are kept
  std::int32_t root = -1;
  std::uint64_t count = 0;  // elements
  // Of a list `dims` is its length, and this holds the elements of the first arrays, then a mixture of those of all.
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

  bool is_of_list() const { return root == of_list; }

  // Everything but the size in one word, for readers of the worker's memory (torsh_runtime/status.py).
  std::uint64_t summary() const {
    return static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(dtype) << 8 | static_cast<std::uint64_t>(op) << 16 |
           static_cast<std::uint64_t>(is_of_list() ? dims : 0) << 24 |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
  }

  // Of a message to or from that rank; less than 0 is unknown.
  std::uint64_t summary_to(int peer) const {
    return (summary() & 0xFFFFFFFF) | static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32;
  }

  // The same with an array of so many bytes, to show where calls differ that are otherwise alike.
  Call of_size(std::size_t bytes) const {
    Call sized = *this;
    sized.count = bytes / size_of(dtype);
    sized.dims = 1;
    if (is_of_list()) sized.root = -1;
    sized.shape = {sized.count};
    return sized;
  }
};
static_assert(sizeof(Call) == 64, "one cache line");

}  // namespace torsh
