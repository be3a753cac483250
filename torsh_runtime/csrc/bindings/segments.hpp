// Where groups have the memory that their ranks share: in a file of their own, or in that of the group
// that their ranks are in already.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "transport/shm/segment_pool.hpp"

namespace torsh::python {

namespace nb = nanobind;

// Holds it until it is let go of, or as long as a group has it.
struct SegmentMemory {
  std::shared_ptr<std::byte> base;
};

void bind_segments(nb::module_& m);

}  // namespace torsh::python
