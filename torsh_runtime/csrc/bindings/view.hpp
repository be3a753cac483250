// Views Python objects as contiguous buffers. Everything here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "common/types.hpp"

namespace torsh::python {

namespace nb = nanobind;

// A buffer whose elements are of another dtype than it says, such as bfloat16 as uint16. Of a dtype that
// is not in DType it holds the bytes, and has its name.
struct Typed {
  nb::object buffer;
  DType dtype;
  nb::object name;
};

// What the elements of an array are. The name, if there is one, is the view's.
struct Elements {
  DType dtype;
  PyObject* name;

  operator DType() const { return dtype; }
  // They are only moved, as bytes.
  bool opaque() const { return name != nullptr; }
  bool operator==(const Elements& other) const {
    if (dtype != other.dtype || opaque() != other.opaque()) return false;
    return !opaque() || PyUnicode_Compare(name, other.name) == 0;
  }
};

// A borrowed view of an array in place: numpy's, other objects with the buffer protocol, CPU tensors with DLPack's C
// interface, and Typed. An array that cannot be used in place (strided, on a GPU …) goes through the `stage`
// function, `stage(array, writable) -> (array in place, finish or None)`, where finish() copies the result back.
// Errors are Python's.
class View {
 public:
  View(nb::handle object, bool writable, const nb::object& stage);
  ~View() { release(); }
  View(View&& other) noexcept;
  View(const View&) = delete;
  View& operator=(View&&) = delete;

  std::byte* data() const { return data_; }
  std::uint64_t count() const { return count_; }
  std::size_t bytes() const { return count_ * size_of(dtype_); }
  Piece piece() const { return {data_, bytes()}; }
  Elements dtype() const { return {dtype_, name_.ptr()}; }
  Call call(OpKind kind, ReduceOp op = ReduceOp::sum, int root = -1) const;

  // Copies the result back after the operation has succeeded.
  void finish();

 private:
  bool take(nb::handle object, bool writable);
  bool take_ndarray(nb::handle object, bool writable);
  bool take_buffer(PyObject* object, bool writable);
  bool take_tensor(nb::handle object);
  template <class Size>
  void take_shape(const Size* sizes, int dims);
  void release();

  Py_buffer buffer_{};
  nb::object kept_, finish_, name_;
  std::byte* data_ = nullptr;
  std::uint64_t count_ = 0;
  std::uint8_t dims_ = 0;
  DType dtype_{};
  std::array<std::uint64_t, Call::max_dims> shape_{};
};

std::vector<View> views(nb::handle list, bool writable, const nb::object& stage);
std::vector<Piece> pieces(const std::vector<View>& views);

}  // namespace torsh::python
