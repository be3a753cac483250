// What a numpy array is, read from its own structure, which is quicker than the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <span>

#include "common/types.hpp"

namespace torsh::python {

namespace nb = nanobind;

struct Ndarray {
  std::byte* data = nullptr;
  std::span<const Py_ssize_t> shape;
  DType dtype{};
};

// To be called once, before anything else here. False, with Python's error, if numpy does not fit.
bool import_numpy();

// Whether `object` is exactly an ndarray that can be used in place: contiguous, aligned, of native
// byte order and a dtype there is, and writable if it must be. Needs the GIL.
bool look_at_ndarray(PyObject* object, bool writable, Ndarray& found);

// An array of bytes, shape (bytes,), that owns this memory.
nb::object as_array(std::unique_ptr<std::byte[]> memory, std::size_t bytes);
// The same of bytes that lie in a block, which it has a share in.
nb::object as_array(std::shared_ptr<std::byte> block, std::byte* data, std::size_t bytes);

}  // namespace torsh::python
