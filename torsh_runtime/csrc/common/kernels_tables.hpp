// Which steps a reduction of which type consists of.
#pragma once

#include <array>

#include "common/kernels_loops.hpp"

namespace torsh::kernels {

// What there is for a type. `scaled` multiplies by numbers that are known at run time, or, for
// integers, divides by a power of two; `divided` divides by anything.
enum class Column : std::uint8_t { sum, product, min, max, band, bor, bxor, scaled, divided };
constexpr std::size_t num_columns = 9;

using Row = std::array<Steps, num_columns>;

// For the types from boolean to uint64, those from float32 to complex128, float16 and bfloat16.
const Row& integer_row(Level level, DType type);
const Row& float_row(Level level, DType type);
const Row& half_row(Level level, DType type);

inline const Steps& steps_of(Level level, DType type, Column column) {
  const bool whole = type <= DType::uint64, half = type == DType::float16 || type == DType::bfloat16;
  const Row& row = whole ? integer_row(level, type) : half ? half_row(level, type) : float_row(level, type);
  return row[static_cast<std::size_t>(column)];
}

// The rows that `Rows<level>::rows` makes of each level.
template <template <Level> typename Rows>
constexpr auto table_of() {
  using Table = std::array<decltype(Rows<Level::baseline>::rows()), num_levels>;
#if defined(__x86_64__)
  return Table{Rows<Level::baseline>::rows(), Rows<Level::v3>::rows(), Rows<Level::v4>::rows()};
#else
  return Table{Rows<Level::baseline>::rows()};
#endif
}

}  // namespace torsh::kernels
