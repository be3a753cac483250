#include "common/kernels.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/kernels_tables.hpp"

namespace torsh {
namespace {

using kernels::Column, kernels::Weights;

constexpr std::size_t largest_shift = 1 << 20;  // see kernels::Shifted

bool is_float(DType type) { return type >= DType::float16; }

// An average over a power of two is the sum times its inverse, to the bit.
Column average(std::size_t divisor) {
  if (divisor <= 1) return Column::sum;
  return std::has_single_bit(divisor) && divisor <= largest_shift ? Column::scaled : Column::divided;
}

Column column_of(ReduceOp op, std::size_t divisor, double factor) {
  switch (op) {
    case ReduceOp::sum: return Column::sum;
    case ReduceOp::avg: return average(divisor);
    case ReduceOp::product: return Column::product;
    case ReduceOp::min: return Column::min;
    case ReduceOp::max: return Column::max;
    case ReduceOp::band: return Column::band;
    case ReduceOp::bor: return Column::bor;
    case ReduceOp::bxor: return Column::bxor;
    case ReduceOp::premul_sum: break;
  }
  return factor == 1.0 ? Column::sum : Column::scaled;
}

Weights weights_of(ReduceOp op, std::size_t divisor, double factor) {
  if (op == ReduceOp::premul_sum) return {factor, factor, 1, 1};
  if (op == ReduceOp::avg && divisor > 1) return {1, 1, 1 / static_cast<double>(divisor), divisor};
  return {};
}

}  // namespace

void copy_shared(std::byte* to, const std::byte* from, std::size_t bytes) {
  const kernels::Steps& bytes_of = kernels::steps_of(kernels::own_level(), DType::uint8, Column::sum);
  bytes_of.only(to, nullptr, from, from, bytes, {});
}

bool is_reducible(DType type, ReduceOp op) {
  if (static_cast<std::size_t>(type) >= num_dtypes || static_cast<std::size_t>(op) >= num_reduce_ops) return false;
  if (op == ReduceOp::premul_sum) return is_float(type);
  if (op == ReduceOp::avg) return type != DType::boolean;
  return kernels::steps_of(kernels::Level::baseline, type, column_of(op, 0, 1)).both != nullptr;
}

Reduction::Reduction(DType type, ReduceOp op, std::size_t sources, std::size_t divisor, double factor)
    : steps_(&kernels::steps_of(kernels::own_level(), type, column_of(op, divisor, factor))),
      sources_(sources),
      weights_(weights_of(op, divisor, factor)),
      type_(type) {}

void Reduction::operator()(std::span<std::byte* const> targets, const std::byte* const* sources,
                           std::size_t count) const {
  if (targets.empty() || count == 0) return;
  const std::size_t bytes = count * element();
  if (sources_ <= 2 && targets.size() <= 2) return reduce_piece(targets, sources, 0, bytes);
  // Pieces that stay in the first-level cache while one source after the other is added to them.
  const std::size_t piece = piece_bytes / steps_->between * steps_->unit;
  for (std::size_t at = 0; at < bytes; at += piece) reduce_piece(targets, sources, at, std::min(bytes - at, piece));
}

void Reduction::reduce_piece(std::span<std::byte* const> targets, const std::byte* const* sources, std::size_t at,
                             std::size_t bytes) const {
  std::byte* out = targets[0] + at;
  std::byte* also = targets.size() > 1 ? targets[1] + at : nullptr;
  const std::size_t units = bytes / steps_->unit;
  if (sources_ == 1) {
    steps_->only(out, also, sources[0] + at, sources[0] + at, units, weights_);
  } else if (sources_ == 2) {
    steps_->both(out, also, sources[0] + at, sources[1] + at, units, weights_);
  } else {
    reduce_many(out, also, sources, at, units);
  }
  for (std::size_t t = 2; t < targets.size(); ++t) std::memcpy(targets[t] + at, out, bytes);
}

void Reduction::reduce_many(std::byte* out, std::byte* also, const std::byte* const* sources, std::size_t at,
                            std::size_t units) const {
  const Weights first{weights_.a, weights_.b, 1, 1}, middle{1, weights_.b, 1, 1};
  const Weights last{1, weights_.b, weights_.result, weights_.divisor};
  alignas(cache_line) std::byte so_far[piece_bytes];
  steps_->first(so_far, nullptr, sources[0] + at, sources[1] + at, units, first);
  for (std::size_t s = 2; s + 1 < sources_; ++s) {
    steps_->middle(so_far, nullptr, so_far, sources[s] + at, units, middle);
  }
  steps_->last(out, also, so_far, sources[sources_ - 1] + at, units, last);
}

}  // namespace torsh
