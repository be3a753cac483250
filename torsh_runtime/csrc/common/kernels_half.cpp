// Steps of float16 and bfloat16.
#include "common/kernels_half.hpp"

#include "common/kernels_tables.hpp"

namespace torsh::kernels {

template <Level level, typename A, typename Out, typename Op>
struct Best<level, A, Bfloat16, Out, Op> {
  using Loop = Bfloat16Pair<A, Out, Op>;
};

#if defined(__x86_64__)
template <typename A, typename Out, typename Op>
struct Best<Level::v3, A, Float16, Out, Op> {
  using Loop = Float16Pair<Level::v3, A, Out, Op>;
};
template <typename A, typename Out, typename Op>
struct Best<Level::v4, A, Float16, Out, Op> {
  using Loop = Float16Pair<Level::v4, A, Out, Op>;
};
#endif

namespace {

template <Level level>
struct Halves {
  template <typename E>
  static constexpr Row row() {
    const Steps sum = plain<level, E, Sum<float>>();
    return {sum,
            plain<level, E, Product<float>>(),
            plain<level, E, Min<float>>(),
            plain<level, E, Max<float>>(),
            Steps{},
            Steps{},
            Steps{},
            finished<level, E, Scaled<float>>(plain<level, E, Scaled<float>>()),
            finished<level, E, Divided<float>>(sum)};
  }

  static constexpr auto rows() { return std::array{row<Float16>(), row<Bfloat16>()}; }
};

}  // namespace

const Row& half_row(Level level, DType type) {
  static constexpr auto table = table_of<Halves>();
  return table[static_cast<std::size_t>(level)][type == DType::bfloat16];
}

}  // namespace torsh::kernels
