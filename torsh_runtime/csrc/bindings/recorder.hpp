// The recording as Python opens it, and as it notes there what other libraries do.
#pragma once

#include <nanobind/nanobind.h>

namespace torsh::python {

void bind_recorder(nanobind::module_& m);

}  // namespace torsh::python
