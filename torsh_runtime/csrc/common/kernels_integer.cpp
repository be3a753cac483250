// Steps of bool and of the integers.
#include "common/kernels_tables.hpp"

namespace torsh::kernels {
namespace {

template <Level level>
struct Integers {
  // Whether an integer has a sign makes no difference to its sums, products and bits.
  template <typename T>
  static constexpr Row row() {
    using U = std::make_unsigned_t<T>;
    using Byte = std::uint8_t;
    const Steps sum = plain<level, U, Sum<U>>();
    return {sum,
            plain<level, U, Product<U>>(),
            plain<level, T, Min<T>>(),
            plain<level, T, Max<T>>(),
            plain<level, Byte, And<Byte>>(),
            plain<level, Byte, Or<Byte>>(),
            plain<level, Byte, Xor<Byte>>(),
            finished<level, T, Shifted<T>>(sum),
            finished<level, T, Divided<T>>(sum)};
  }

  template <template <typename> typename Op>
  static constexpr Steps bits() {
    using Value = Element<Bool>::Value;
    Steps steps = plain<level, Bool, Op<Value>>();
    steps.only = pair<level, Bool, Bool, Bool, Alone<Value, Same<Value>>>();
    return steps;
  }

  static constexpr Row bools() {
    const Steps all = bits<And>(), any = bits<Or>();
    return {any, all, all, any, all, any, bits<Xor>(), Steps{}, Steps{}};
  }

  static constexpr auto rows() {
    return std::array{bools(),
                      row<std::int8_t>(),
                      row<std::int16_t>(),
                      row<std::int32_t>(),
                      row<std::int64_t>(),
                      row<std::uint8_t>(),
                      row<std::uint16_t>(),
                      row<std::uint32_t>(),
                      row<std::uint64_t>()};
  }
};

}  // namespace

const Row& integer_row(Level level, DType type) {
  static constexpr auto table = table_of<Integers>();
  return table[static_cast<std::size_t>(level)][static_cast<std::size_t>(type)];
}

}  // namespace torsh::kernels
