// The numbers of what Python names too: agents, which have no core, read them in status pages and recordings.
#pragma once

#include <nanobind/nanobind.h>

namespace torsh::python {

// By enumeration, and by name as Python has it.
nanobind::dict enumerations();

}  // namespace torsh::python
