// The shared memory of groups: in a file of their own, or in that of the group that their ranks already have.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "transport/shm/segment_pool.hpp"

namespace torsh::python {

namespace nb = nanobind;

// Keeps the memory until it is released, or as long as a group uses it.
struct SegmentMemory {
  std::shared_ptr<std::byte> base;
};

void bind_segments(nb::module_& m);

}  // namespace torsh::python
