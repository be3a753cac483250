// Python's signal handlers, for waits in C++.
#pragma once

#include <Python.h>
#include <unistd.h>

#include "bindings/gil.hpp"

namespace torsh::python {

// Whether a handler has raised, which is then this thread's Python error. Needs no GIL.
inline bool interrupted() {
  if (gettid() != getpid()) return false;  // Python runs signal handlers on its main thread only
  const WithGil locked;
  return PyErr_CheckSignals() != 0;
}

}  // namespace torsh::python
