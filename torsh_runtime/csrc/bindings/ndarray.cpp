#include "bindings/ndarray.hpp"

#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL torsh_numpy  // which arrays.cpp uses, too
#include <numpy/arrayobject.h>

#include <array>
#include <optional>

namespace torsh::python {
namespace {

using Table = std::array<std::optional<DType>, NPY_HALF + 1>;

constexpr Table dtypes() {
  Table table;
  table[NPY_BOOL] = DType::boolean;
  table[NPY_BYTE] = DType::int8;
  table[NPY_SHORT] = sized(DType::int8, sizeof(short));
  table[NPY_INT] = sized(DType::int8, sizeof(int));
  table[NPY_LONG] = sized(DType::int8, sizeof(long));
  table[NPY_LONGLONG] = sized(DType::int8, sizeof(long long));
  table[NPY_UBYTE] = DType::uint8;
  table[NPY_USHORT] = sized(DType::uint8, sizeof(short));
  table[NPY_UINT] = sized(DType::uint8, sizeof(int));
  table[NPY_ULONG] = sized(DType::uint8, sizeof(long));
  table[NPY_ULONGLONG] = sized(DType::uint8, sizeof(long long));
  table[NPY_HALF] = DType::float16;
  table[NPY_FLOAT] = DType::float32;
  table[NPY_DOUBLE] = DType::float64;
  table[NPY_CFLOAT] = DType::complex64;
  table[NPY_CDOUBLE] = DType::complex128;
  return table;
}

}  // namespace

bool import_numpy() { return PyArray_ImportNumPyAPI() == 0; }

bool look_at_ndarray(PyObject* object, bool writable, Ndarray& found) {
  static constexpr Table known = dtypes();
  if (!PyArray_CheckExact(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const PyArray_Descr* descr = PyArray_DESCR(array);
  const auto type = static_cast<std::size_t>(descr->type_num);
  const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (writable ? NPY_ARRAY_WRITEABLE : 0);
  const bool is_plain = PyArray_ISNBO(descr->byteorder) && !PyDataType_HASFIELDS(descr);
  const bool usable = PyArray_CHKFLAGS(array, needed) && is_plain;
  if (!usable || type >= known.size() || !known[type]) return false;
  found.data = static_cast<std::byte*>(PyArray_DATA(array));
  found.shape = {PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array))};
  found.dtype = *known[type];
  return true;
}

namespace {

nb::object array_over(std::byte* data, std::size_t bytes, nb::capsule owner) {
  npy_intp shape[] = {static_cast<npy_intp>(bytes)};
  nb::object array = nb::steal(PyArray_SimpleNewFromData(1, shape, NPY_UBYTE, data));
  if (!array.is_valid()) throw nb::python_error();
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()), owner.release().ptr()) != 0) throw nb::python_error();
  return array;
}

}  // namespace

nb::object as_array(std::unique_ptr<std::byte[]> memory, std::size_t bytes) {
  std::byte* const data = memory.get();
  nb::capsule owner(memory.release(), [](void* owned) noexcept { delete[] static_cast<std::byte*>(owned); });
  return array_over(data, bytes, std::move(owner));
}

nb::object as_array(std::shared_ptr<std::byte> block, std::byte* data, std::size_t bytes) {
  using Share = std::shared_ptr<std::byte>;
  nb::capsule owner(new Share(std::move(block)), [](void* owned) noexcept { delete static_cast<Share*>(owned); });
  return array_over(data, bytes, std::move(owner));
}

}  // namespace torsh::python
