#include "bindings/arrays.hpp"

#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define NPY_TARGET_VERSION NPY_1_25_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL torsh_numpy
#define NO_IMPORT_ARRAY
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstring>

namespace torsh::python {
namespace {

constexpr const char* capsule_name = "mem_handler";

// What numpy keeps with each array. Small arrays, and what finds no room, go to numpy's allocator.
struct Handler {
  PyDataMem_Handler numpy;
  std::shared_ptr<shm::SharedHeap> heap;
  PyDataMemAllocator others;
};

Handler& of(void* context) { return *static_cast<Handler*>(context); }

void* take(void* context, std::size_t bytes) {
  Handler& handler = of(context);
  void* data = bytes >= shm::least_array ? handler.heap->allocate(bytes, false) : nullptr;
  return data != nullptr ? data : handler.others.malloc(handler.others.ctx, bytes);
}

void* take_zeros(void* context, std::size_t count, std::size_t bytes) {
  Handler& handler = of(context);
  const bool fits = bytes != 0 && count <= PTRDIFF_MAX / bytes && count * bytes >= shm::least_array;
  void* data = fits ? handler.heap->allocate(count * bytes, true) : nullptr;
  return data != nullptr ? data : handler.others.calloc(handler.others.ctx, count, bytes);
}

void give_back(void* context, void* data, std::size_t bytes) {
  Handler& handler = of(context);
  if (!handler.heap->release(static_cast<std::byte*>(data))) handler.others.free(handler.others.ctx, data, bytes);
}

void* resize(void* context, void* data, std::size_t bytes) {
  Handler& handler = of(context);
  const auto had = handler.heap->size_of(static_cast<std::byte*>(data));
  if (!had) return handler.others.realloc(handler.others.ctx, data, bytes);
  if (bytes <= *had && bytes >= *had / 2) return data;
  void* moved = take(context, bytes);
  if (moved == nullptr) return nullptr;
  std::memcpy(moved, data, std::min(bytes, *had));
  give_back(context, data, *had);
  return moved;
}

nb::object default_handler() { return nb::borrow(PyDataMem_DefaultHandler); }

nb::object current_handler() {
  nb::object found = nb::steal(PyDataMem_GetHandler());
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

void use(const nb::object& handler) {
  if (!nb::steal(PyDataMem_SetHandler(handler.ptr())).is_valid()) throw nb::python_error();
}

nb::object capsule(std::shared_ptr<shm::SharedHeap> heap) {
  auto* numpys = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(default_handler().ptr(), capsule_name));
  if (numpys == nullptr) throw nb::python_error();
  auto made = std::make_unique<Handler>(Handler{{}, std::move(heap), numpys->allocator});
  std::strncpy(made->numpy.name, "torsh_shared_arrays", sizeof made->numpy.name - 1);
  made->numpy.version = 1;
  made->numpy.allocator = {made.get(), take, take_zeros, resize, give_back};
  const auto destroy = [](PyObject* object) {
    delete reinterpret_cast<Handler*>(PyCapsule_GetPointer(object, capsule_name));
  };
  nb::object handler = nb::steal(PyCapsule_New(&made->numpy, capsule_name, destroy));
  if (!handler.is_valid()) throw nb::python_error();
  (void)made.release();
  return handler;
}

}  // namespace

SharedArrays::SharedArrays(const shm::SharedHeapSetup& setup) : heap_(shm::SharedHeap::make(setup)), handler_(capsule(heap_)) {}

bool SharedArrays::possible() {
  const nb::object current = current_handler();
  const auto* known = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(current.ptr(), capsule_name));
  if (known == nullptr) throw nb::python_error();
  const bool is_ours = known->allocator.malloc == take;  // of a group that another thread has left
  return (is_ours || current.is(default_handler())) && !shm::SharedHeap::current();
}

void SharedArrays::begin() { use(handler_); }

void SharedArrays::end() {
  heap_->retire();
  if (current_handler().is(handler_)) use(default_handler());
}

}  // namespace torsh::python
