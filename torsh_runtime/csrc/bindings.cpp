// The only file that knows Python. It checks arguments, releases the GIL and turns Failure into
// the Python exception `Failure`, whose arguments are its facts.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <bit>
#include <memory>
#include <stdexcept>

#include "collectives/in_node.hpp"

namespace nb = nanobind;
using torsh::Call;
using torsh::DType;
using torsh::Failure;
using torsh::FailureKind;
using torsh::OpKind;
using torsh::Progress;
using torsh::ReduceOp;
using torsh::shm::Tuning;

namespace {

// The object cannot be used in place: not a contiguous, aligned buffer, not writable, or not of our
// types.
struct NotDirect : std::exception {
  const char* what() const noexcept override { return "not a contiguous buffer of a supported dtype"; }
};

bool native_format(const char* format, Py_ssize_t itemsize, DType& type) {
  if (format == nullptr) return false;
  if (*format == '@' || *format == '=' || *format == (std::endian::native == std::endian::little ? '<' : '>')) ++format;
  if (format[0] == '\0' || format[1] != '\0') return false;
  switch (format[0]) {
    case 'f': type = DType::float32; return true;
    case 'd': type = DType::float64; return true;
    case 'i': case 'l': case 'q': type = itemsize == 4 ? DType::int32 : DType::int64; return true;
    default: return false;
  }
}

// A borrowed view of a Python buffer; take and give back with the GIL held.
class View {
 public:
  View(nb::handle object, bool writable) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      throw NotDirect();
    }
    const bool aligned = reinterpret_cast<std::uintptr_t>(view_.buf) % static_cast<std::size_t>(view_.itemsize) == 0;
    if (!aligned || !native_format(view_.format, view_.itemsize, dtype_)) {
      PyBuffer_Release(&view_);
      throw NotDirect();
    }
  }
  ~View() { PyBuffer_Release(&view_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::uint64_t count() const { return static_cast<std::uint64_t>(view_.len / view_.itemsize); }
  DType dtype() const { return dtype_; }

  Call call(OpKind kind, ReduceOp op = ReduceOp::sum, int root = -1) const {
    Call call{.kind = kind, .dtype = dtype_, .op = op, .root = root, .count = count()};
    call.dims = static_cast<std::uint8_t>(view_.ndim);
    for (std::size_t i = 0; i < Call::max_dims && i < call.dims; ++i) call.shape[i] = static_cast<std::uint64_t>(view_.shape[i]);
    return call;
  }

 private:
  Py_buffer view_{};
  DType dtype_{};
};

ReduceOp reduction(nb::handle op) {
  if (!PyLong_Check(op.ptr()) || PyBool_Check(op.ptr())) {
    throw nb::type_error("op must be a ReduceOp: SUM, AVG, MIN or MAX");
  }
  const long number = PyLong_AsLong(op.ptr());
  if (number < 0 || number > static_cast<long>(ReduceOp::max)) {
    PyErr_Clear();
    throw nb::value_error("op must be ReduceOp.SUM, AVG, MIN or MAX");
  }
  return static_cast<ReduceOp>(number);
}

bool interrupted() {
  if (gettid() != getpid()) return false;  // Python runs signal handlers on its main thread only
  const nb::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;
}

// A record of the worker's status page, kept from going away; none of None.
class Record {
 public:
  explicit Record(nb::handle object) {
    if (object.is_none()) return;
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const bool aligned = reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(Progress) == 0;
    if (!aligned || static_cast<std::size_t>(view_.len) < sizeof(Progress)) {
      PyBuffer_Release(&view_);
      throw nb::value_error("the record of a status page is too small or not aligned");
    }
  }
  ~Record() { PyBuffer_Release(&view_); }  // does nothing for none
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  Progress* progress() const { return static_cast<Progress*>(view_.buf); }

 private:
  Py_buffer view_{};
};

class Group {
 public:
  Group(int descriptor, int rank, int ranks, const Tuning& tuning, const std::vector<int>& pids, nb::handle record,
        std::uint32_t number)
      : record_(record), channel_(descriptor, rank, ranks, tuning, pids, interrupted, record_.progress(), number) {}

  void all_reduce(nb::handle array, nb::handle op, double timeout) {
    const View view(array, true);
    const Call call = view.call(OpKind::all_reduce, reduction(op));
    const nb::gil_scoped_release release;
    torsh::in_node::all_reduce(channel_, call, view.data(), timeout);
  }

  void broadcast(nb::handle array, int root, double timeout) {
    const View view(array, root != channel_.rank());
    const Call call = view.call(OpKind::broadcast, ReduceOp::sum, root);
    const nb::gil_scoped_release release;
    torsh::in_node::broadcast(channel_, call, view.data(), timeout);
  }

  void all_gather(nb::handle output, nb::handle input, double timeout) {
    const View to(output, true), from(input, false);
    check_parts(to, from);
    const Call call = from.call(OpKind::all_gather);
    const nb::gil_scoped_release release;
    torsh::in_node::all_gather(channel_, call, to.data(), from.data(), timeout);
  }

  void reduce_scatter(nb::handle output, nb::handle input, nb::handle op, double timeout) {
    const View to(output, true), from(input, false);
    check_parts(from, to);
    const Call call = to.call(OpKind::reduce_scatter, reduction(op));
    const nb::gil_scoped_release release;
    torsh::in_node::reduce_scatter(channel_, call, to.data(), from.data(), timeout);
  }

  void barrier(double timeout) {
    const Call call{.kind = OpKind::barrier};
    const nb::gil_scoped_release release;
    torsh::in_node::barrier(channel_, call, timeout);
  }

  void abort() { channel_.abort(); }

  void close() {
    const nb::gil_scoped_release release;
    channel_.close();
  }

 private:
  void check_parts(const View& all, const View& part) const {
    if (all.dtype() != part.dtype()) throw nb::value_error("input and output must have the same dtype");
    if (all.count() != part.count() * static_cast<std::uint64_t>(channel_.ranks())) {
      throw nb::value_error("the larger array must hold exactly world_size times the elements of the smaller");
    }
  }

  const Record record_;
  torsh::shm::Channel channel_;
};

nb::tuple describe(const Call& call) {
  nb::list shape;
  for (std::size_t i = 0; i < Call::max_dims && i < call.dims; ++i) shape.append(call.shape[i]);
  return nb::make_tuple(static_cast<int>(call.kind), static_cast<int>(call.dtype), static_cast<int>(call.op),
                        call.root, nb::tuple(shape));
}

nb::tuple facts(const Failure& failure) {
  return nb::make_tuple(static_cast<int>(failure.kind), failure.rank, failure.reporter, static_cast<int>(failure.op),
                        failure.sequence, failure.seconds, failure.missing, describe(failure.own),
                        describe(failure.other));
}

void translate(const std::exception_ptr& pointer, void* failure_type) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Failure& failure) {
    PyErr_SetObject(static_cast<PyObject*>(failure_type), facts(failure).ptr());
  } catch (const torsh::Interrupted&) {
    // PyErr_CheckSignals has set the error that the signal's handler raised.
  }
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a group that lives until the process ends is no leak
  PyObject* failure = PyErr_NewException("torsh_runtime.backends._native.Failure", PyExc_RuntimeError, nullptr);
  m.attr("Failure") = nb::steal(failure);
  nb::exception<NotDirect>(m, "NotDirect", PyExc_TypeError);
  nb::register_exception_translator(translate, failure);
  nb::class_<Tuning>(m, "Tuning")
      .def(
          "__init__",
          [](Tuning* self, std::size_t whole_limit, std::size_t block_bytes) {
            new (self) Tuning{whole_limit, block_bytes};
          },
          nb::arg("whole_limit"), nb::arg("block_bytes"));
  m.def("segment_bytes", [](int ranks, const Tuning& tuning) {
    return torsh::shm::Segment::bytes_for(ranks, torsh::shm::slot_bytes(tuning));
  });
  m.attr("MAX_RANKS") = torsh::shm::max_ranks;

  nb::class_<Group>(m, "Group")
      .def(nb::init<int, int, int, const Tuning&, const std::vector<int>&, nb::handle, std::uint32_t>(),
           nb::arg("descriptor"), nb::arg("rank"), nb::arg("ranks"), nb::arg("tuning"), nb::arg("pids"),
           nb::arg("record") = nb::none(), nb::arg("number") = 0)
      .def("all_reduce", &Group::all_reduce)
      .def("broadcast", &Group::broadcast)
      .def("all_gather", &Group::all_gather)
      .def("reduce_scatter", &Group::reduce_scatter)
      .def("barrier", &Group::barrier)
      .def("abort", &Group::abort)
      .def("close", &Group::close);
}
