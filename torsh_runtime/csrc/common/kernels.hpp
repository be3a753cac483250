// Copies and elementwise reductions, vectorised for the processor they run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.hpp"

namespace torsh {

// memcpy for buffers of which one is shared with other processors.
void copy_shared(std::byte* to, const std::byte* from, std::size_t bytes);

// Whether the reduction is defined for elements of this type.
bool is_reducible(DType type, ReduceOp op);

namespace kernels {

// What a step multiplies its operands and its result with, or divides the result by.
struct Weights {
  double a = 1, b = 1, result = 1;
  std::uint64_t divisor = 1;
};

// out[i] = a[i] op b[i], and the same into `also` unless that is null. Each of out and also may be
// a or b; no other overlap.
using Kernel = void (*)(std::byte* out, std::byte* also, const std::byte* a, const std::byte* b, std::size_t count,
                        const Weights& weights);

// A reduction, step by step. Sums of halves are float32 until the last step.
struct Steps {
  Kernel only = nullptr;     // the only source, which is a and b
  Kernel both = nullptr;     // the only two sources
  Kernel first = nullptr;    // the first two sources of more
  Kernel middle = nullptr;   // what came out so far, and one more source
  Kernel last = nullptr;     // what came out so far, and the last source
  std::uint8_t unit = 0;     // bytes of what a kernel counts as one, which may be a part of an element
  std::uint8_t between = 0;  // bytes of that between the steps
};

}  // namespace kernels

// A reduction over any number of sources, always in the order given, so that every rank and every
// run gets the same bits, whatever the processor, the count and the alignment; NaN too is always the
// same one where more than one source was reduced. float16 and bfloat16 are reduced in float32 and
// rounded once.
class Reduction {
 public:
  // type and op must go together (is_reducible). `divisor` is the number of ranks an average is
  // divided by; 0 leaves it a sum. `factor` multiplies each source of a premul_sum first; 1 for
  // what has been multiplied already.
  Reduction(DType type, ReduceOp op, std::size_t sources, std::size_t divisor, double factor = 1.0);

  std::size_t sources() const { return sources_; }
  DType type() const { return type_; }
  std::size_t element() const { return size_of(type_); }  // bytes

  // Every target gets sources[0][i] op sources[1][i] op …, for count elements. A target may be a
  // source; no other overlap.
  void operator()(std::span<std::byte* const> targets, const std::byte* const* sources, std::size_t count) const;

 private:
  static constexpr std::size_t piece_bytes = 8 * 1024;

  void reduce_piece(std::span<std::byte* const> targets, const std::byte* const* sources, std::size_t at,
                    std::size_t bytes) const;
  void reduce_many(std::byte* out, std::byte* also, const std::byte* const* sources, std::size_t at,
                   std::size_t units) const;

  const kernels::Steps* steps_;
  std::size_t sources_;
  kernels::Weights weights_;  // of a step that is the first and the last one
  DType type_;
};

}  // namespace torsh
