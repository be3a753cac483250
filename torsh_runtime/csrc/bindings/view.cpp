#include "bindings/view.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "bindings/dlpack.hpp"
#include "bindings/ndarray.hpp"

namespace torsh::python {
namespace {

// The dtype of a struct-module format of one item in native byte order.
bool native_format(const char* format, Py_ssize_t size, DType& type) {
  if (format == nullptr) return false;
  if (*format == '@' || *format == '=' || *format == (std::endian::native == std::endian::little ? '<' : '>')) ++format;
  const bool is_complex = format[0] == 'Z';
  if (is_complex) ++format;
  if (format[0] == '\0' || format[1] != '\0') return false;
  switch (format[0]) {
    case 'f': type = is_complex ? DType::complex64 : DType::float32; return true;
    case 'd': type = is_complex ? DType::complex128 : DType::float64; return true;
    case 'e': type = DType::float16; return !is_complex;
    case '?': type = DType::boolean; return !is_complex;
    case 'b': case 'h': case 'i': case 'l': case 'q': type = sized(DType::int8, static_cast<std::size_t>(size)); return !is_complex;
    case 'B': case 'H': case 'I': case 'L': case 'Q': type = sized(DType::uint8, static_cast<std::size_t>(size)); return !is_complex;
    default: return false;
  }
}

bool tensor_format(const dlpack::Tensor& tensor, DType& type) {
  if (tensor.lanes != 1) return false;
  const Py_ssize_t size = tensor.bits / 8;
  switch (tensor.code) {
    case dlpack::boolean: type = DType::boolean; return size == 1;
    case dlpack::bfloat: type = DType::bfloat16; return size == 2;
    case dlpack::integer: type = sized(DType::int8, static_cast<std::size_t>(size)); return size >= 1 && size <= 8;
    case dlpack::unsigned_integer: type = sized(DType::uint8, static_cast<std::size_t>(size)); return size >= 1 && size <= 8;
    case dlpack::floating:
      type = size == 2 ? DType::float16 : size == 4 ? DType::float32 : DType::float64;
      return size == 2 || size == 4 || size == 8;
    case dlpack::complex: type = size == 8 ? DType::complex64 : DType::complex128; return size == 8 || size == 16;
    default: return false;
  }
}

bool is_contiguous(const dlpack::Tensor& tensor) {
  std::int64_t expected = 1;
  for (int dim = tensor.dims - 1; dim >= 0 && tensor.strides != nullptr; --dim) {
    if (tensor.shape[dim] == 0) return true;
    if (tensor.shape[dim] != 1 && tensor.strides[dim] != expected) return false;
    expected *= tensor.shape[dim];
  }
  return true;
}

const dlpack::Exchange* exchange_of(nb::handle type) {
  const nb::object capsule = nb::steal(PyObject_GetAttrString(type.ptr(), "__dlpack_c_exchange_api__"));
  if (!capsule.is_valid()) {
    PyErr_Clear();
    return nullptr;
  }
  void* found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (found == nullptr) PyErr_Clear();
  const auto* exchange = static_cast<const dlpack::Exchange*>(found);
  const bool usable = exchange != nullptr && exchange->header.major == 1 && exchange->look != nullptr;
  return usable ? exchange : nullptr;
}

// exchange_of a type, remembered for the few that come: torch.Tensor, torch.nn.Parameter.
const dlpack::Exchange* known_exchange(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const dlpack::Exchange* exchange;
  };
  static std::array<Known, 8> known{};
  for (Known& each : known) {
    if (each.type == type) return each.exchange;
    if (each.type != nullptr) continue;
    Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that no other type can come to lie there
    each = {type, exchange_of(nb::handle(reinterpret_cast<PyObject*>(type)))};
    return each.exchange;
  }
  return exchange_of(nb::handle(reinterpret_cast<PyObject*>(type)));
}

// What a method without arguments answers; false if there is no such method.
bool answers(nb::handle object, const char* method) {
  const nb::object asked = nb::getattr(object, method, nb::none());
  return !asked.is_none() && nb::cast<bool>(asked());
}

// Whether the memory holds the conjugates or negatives of the tensor's values, as torch may leave it.
bool is_lazy(nb::handle object, const dlpack::Tensor& tensor) {
  return answers(object, "is_neg") || (tensor.code == dlpack::complex && answers(object, "is_conj"));
}

// A tensor that is made of others (DTensor) or of none (FakeTensor) has no memory.
bool has_memory(const dlpack::Tensor& tensor) {
  return tensor.data != nullptr || std::any_of(tensor.shape, tensor.shape + tensor.dims, [](auto size) { return size == 0; });
}

bool is_aligned(const void* data, DType type) {
  const std::size_t element = std::min<std::size_t>(size_of(type), 8);
  return reinterpret_cast<std::uintptr_t>(data) % element == 0;
}

}  // namespace

View::View(nb::handle object, bool writable, const nb::object& stage) {
  if (take(object, writable)) return;
  const nb::tuple staged = nb::cast<nb::tuple>(stage(object, writable));
  kept_ = staged[0];
  if (!staged[1].is_none()) finish_ = staged[1];
  if (!take(kept_, writable)) throw nb::type_error("a staged array cannot be used in place");
}

View::View(View&& other) noexcept
    : buffer_(std::exchange(other.buffer_, {})),
      kept_(std::move(other.kept_)),
      finish_(std::move(other.finish_)),
      name_(std::move(other.name_)),
      data_(other.data_),
      count_(other.count_),
      dims_(other.dims_),
      dtype_(other.dtype_),
      shape_(other.shape_) {}

void View::release() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

bool View::take(nb::handle object, bool writable) {
  if (take_ndarray(object, writable)) return true;
  if (PyObject_CheckBuffer(object.ptr())) return take_buffer(object.ptr(), writable);
  if (nb::isinstance<Typed>(object)) {
    const Typed& typed = nb::cast<const Typed&>(object);
    if (!take_buffer(typed.buffer.ptr(), writable) || size_of(dtype_) != size_of(typed.dtype)) return false;
    dtype_ = typed.dtype;
    if (!typed.name.is_none()) name_ = typed.name;
    return true;
  }
  return take_tensor(object);
}

template <class Size>
void View::take_shape(const Size* sizes, int dims) {
  count_ = 1;
  dims_ = static_cast<std::uint8_t>(dims);
  for (int dim = 0; dim < dims; ++dim) {
    const auto size = static_cast<std::uint64_t>(sizes[dim]);
    count_ *= size;
    if (static_cast<std::size_t>(dim) < Call::max_dims) shape_[static_cast<std::size_t>(dim)] = size;
  }
}

bool View::take_ndarray(nb::handle object, bool writable) {
  Ndarray array;
  if (!look_at_ndarray(object.ptr(), writable, array)) return false;
  if (!kept_.is_valid()) kept_ = nb::borrow(object);
  data_ = array.data;
  dtype_ = array.dtype;
  take_shape(array.shape.data(), static_cast<int>(array.shape.size()));
  return true;
}

bool View::take_buffer(PyObject* object, bool writable) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object, &buffer_, flags) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!native_format(buffer_.format, buffer_.itemsize, dtype_) || !is_aligned(buffer_.buf, dtype_)) {
    PyBuffer_Release(&buffer_);
    return false;
  }
  data_ = static_cast<std::byte*>(buffer_.buf);
  take_shape(buffer_.shape, buffer_.ndim);
  return true;
}

bool View::take_tensor(nb::handle object) {
  const dlpack::Exchange* known = known_exchange(Py_TYPE(object.ptr()));
  dlpack::Tensor tensor{};
  if (known == nullptr) return false;
  if (known->look(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  const bool direct = tensor.device_type == dlpack::on_cpu && has_memory(tensor) && tensor_format(tensor, dtype_) &&
                      is_contiguous(tensor) && is_aligned(data_, dtype_) && !is_lazy(object, tensor);
  if (!direct) return false;
  if (!kept_.is_valid()) kept_ = nb::borrow(object);
  take_shape(tensor.shape, tensor.dims);
  return true;
}

Call View::call(OpKind kind, ReduceOp op, int root) const {
  Call call{.kind = kind, .dtype = dtype_, .op = op, .root = root, .count = count_};
  call.dims = dims_;
  call.shape = shape_;
  return call;
}

void View::finish() {
  if (finish_.is_valid()) finish_();
  finish_.reset();
}

std::vector<View> views(nb::handle list, bool writable, const nb::object& stage) {
  std::vector<View> found;
  if (list.is_none()) return found;
  const nb::sequence arrays = nb::cast<nb::sequence>(list);
  found.reserve(nb::len(arrays));
  for (const nb::handle array : arrays) found.emplace_back(array, writable, stage);
  return found;
}

std::vector<Piece> pieces(const std::vector<View>& views) {
  std::vector<Piece> found;
  found.reserve(views.size());
  for (const View& view : views) found.push_back(view.piece());
  return found;
}

}  // namespace torsh::python
