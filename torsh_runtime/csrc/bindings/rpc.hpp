// Remote calls as Python makes and serves them.
#pragma once

#include <nanobind/nanobind.h>

namespace torsh::python {

namespace nb = nanobind;

void bind_rpc(nb::module_& m);

}  // namespace torsh::python
