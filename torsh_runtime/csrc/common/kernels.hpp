// Copies and elementwise reductions, vectorised for the processor they run on.
#pragma once

#include <cstddef>
#include <span>

#include "common/types.hpp"

namespace torsh {

// memcpy for buffers of which one is shared with other processors.
void copy_shared(std::byte* to, const std::byte* from, std::size_t bytes);

// dst[i] = a[i] op b[i], and the same into `also` unless that is null. Each of dst and also may be
// a or b; no other overlap.
using ReduceKernel = void (*)(void* dst, void* also, const void* a, const void* b, std::size_t count);
// values[i] /= divisor; integers round towards zero.
using DivideKernel = void (*)(void* values, std::size_t count, std::size_t divisor);

ReduceKernel reduce_kernel(DType type, ReduceOp op);
DivideKernel divide_kernel(DType type);

// A reduction over any number of sources, always in the order given, so that every rank and every
// run gets the same bits.
class Reduction {
 public:
  Reduction(DType type, ReduceOp op, std::size_t sources)
      : combine_(reduce_kernel(type, op)),
        divide_(op == ReduceOp::avg ? divide_kernel(type) : nullptr),
        sources_(sources),
        element_(size_of(type)) {}

  // Every target gets sources[0][i] op sources[1][i] op …, for count elements. A target may be a
  // source; no other overlap.
  void operator()(std::span<std::byte* const> targets, const std::byte* const* sources, std::size_t count) const;

 private:
  void reduce_piece(std::byte* result, const std::byte* const* sources, std::size_t at, std::size_t count) const;

  ReduceKernel combine_;
  DivideKernel divide_;
  std::size_t sources_;
  std::size_t element_;
};

}  // namespace torsh
