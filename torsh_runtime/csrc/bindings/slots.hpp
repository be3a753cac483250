// Published arrays in the memory of a node: the writer's end and a reader's.
#pragma once

#include <nanobind/nanobind.h>

namespace torsh::python {

namespace nb = nanobind;

void bind_slots(nb::module_& m);

}  // namespace torsh::python
