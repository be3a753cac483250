// Steps of float32, float64, complex64 and complex128.
#include "common/kernels_tables.hpp"

namespace torsh::kernels {
namespace {

template <Level level>
struct Floats {
  template <typename T>
  static constexpr Row row() {
    const Steps sum = plain<level, T, Sum<T>>();
    return {sum,
            plain<level, T, Product<T>>(),
            plain<level, T, Min<T>>(),
            plain<level, T, Max<T>>(),
            Steps{},
            Steps{},
            Steps{},
            finished<level, T, Scaled<T>>(plain<level, T, Scaled<T>>()),
            finished<level, T, Divided<T>>(sum)};
  }

  // A complex number is two units, except in products.
  template <typename T>
  static constexpr Row complex_row() {
    const auto [sum, product, min, max, band, bor, bxor, scaled, divided] = row<T>();
    return {sum, plain<level, Complex<T>, Product<Complex<T>>>(), {}, {}, {}, {}, {}, scaled, divided};
  }

  static constexpr auto rows() {
    return std::array{row<float>(), row<double>(), complex_row<float>(), complex_row<double>()};
  }
};

}  // namespace

const Row& float_row(Level level, DType type) {
  static constexpr auto table = table_of<Floats>();
  const std::size_t first = static_cast<std::size_t>(DType::float32);
  return table[static_cast<std::size_t>(level)][static_cast<std::size_t>(type) - first];
}

}  // namespace torsh::kernels
