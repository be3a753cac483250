#include "bindings/slots.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <system_error>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/ndarray.hpp"
#include "bindings/signals.hpp"
#include "bindings/view.hpp"
#include "common/failure.hpp"
#include "common/streaming.hpp"
#include "rpc/slot_reader.hpp"
#include "rpc/slots.hpp"

namespace torsh::python {
namespace {

using rpc::Lease;
using rpc::News;
using rpc::SlotReader;
using rpc::Slots;
using rpc::Token;
using namespace nb::literals;

// Calls this without the GIL, with the system's errors as OSError.
template <class Body>
auto without_gil(Body body) {
  try {
    const WithoutGil unlocked;
    return body();
  } catch (const Interrupted&) {
    throw nb::python_error();
  } catch (const std::system_error& error) {
    const nb::object facts = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, facts.ptr());
    throw nb::python_error();
  } catch (const rpc::NoLeaseLeft& error) {
    PyErr_SetString(PyExc_BlockingIOError, error.what());
    throw nb::python_error();
  }
}

Token token_of(nb::bytes text) {
  Token token{};
  if (text.size() != sizeof token) throw nb::value_error("a token has 16 bytes");
  std::memcpy(token.data(), text.c_str(), sizeof token);
  return token;
}

std::optional<std::size_t> take(Slots& self, std::size_t bytes, double seconds) {
  return without_gil([&] { return self.take(bytes, seconds, interrupted); });
}

// Copies each of the arrays to its place in the slot.
void fill(Slots& self, std::size_t slot, nb::handle arrays, const std::vector<std::size_t>& starts, const nb::object& stage) {
  const std::vector<View> from = views(arrays, false, stage);
  if (from.size() != starts.size()) throw nb::value_error("each array needs a place");
  const auto memory = self.memory(slot);
  const std::size_t room = self.bytes(slot);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (starts[i] > room || from[i].bytes() > room - starts[i]) throw nb::value_error("an array does not fit into the slot");
  }
  without_gil([&] {
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].bytes() != 0) copy_streaming(memory.get() + starts[i], from[i].data(), from[i].bytes());
    }
  });
}

// All of it, for what has to be written by other means.
nb::object memory_of(Slots& self, std::size_t slot) {
  const auto& memory = self.memory(slot);
  return as_array(memory, memory.get(), self.bytes(slot));
}

const char* wait(const SlotReader& self, std::uint64_t after, double seconds) {
  switch (without_gil([&] { return self.wait(after, seconds, interrupted); })) {
    case News::newer: return "newer";
    case News::closed: return "closed";
    case News::lost: return "lost";
    case News::late: break;
  }
  return "late";
}

// is_own: of what this process alone may write to. is_writable: whether the array says that it can be written to.
nb::object array_of(const std::shared_ptr<Lease>& self, bool is_own, bool is_writable) {
  std::byte* const data = is_own ? self->writable_data() : const_cast<std::byte*>(self->data());
  nb::object array = as_array(std::shared_ptr<std::byte>(self, data), data, self->bytes());
  if (!is_writable) array.attr("flags").attr("writeable") = false;
  return array;
}

nb::list holders(const Slots& self) {
  nb::list found;
  for (const rpc::Holder& each : self.holders()) found.append(nb::make_tuple(each.pid, each.name, each.version));
  return found;
}

}  // namespace

void bind_slots(nb::module_& m) {
  m.attr("MOST_SLOTS") = rpc::most_slots;
  nb::class_<Slots>(m, "Slots")
      .def(nb::new_([] { return without_gil([] { return std::make_shared<Slots>(); }); }))
      .def_prop_ro("file", &Slots::file)
      .def_prop_ro("token", [](const Slots& self) { return nb::bytes(self.token().data(), sizeof(Token)); })
      .def_prop_ro("count", &Slots::count)
      .def("take", &take, "bytes"_a, "seconds"_a)
      .def("fill", &fill, "slot"_a, "arrays"_a, "starts"_a, "stage"_a)
      .def("memory", &memory_of)
      .def("publish", [](Slots& self, std::size_t slot, std::uint64_t version, std::size_t data, std::size_t text) {
        without_gil([&] { self.publish(slot, version, data, text); });
      }, "slot"_a, "version"_a, "data"_a, "text"_a)
      .def("holders", &holders)
      .def("stop", &Slots::stop)
      .def("close", &Slots::close);
  nb::class_<Lease>(m, "Lease")
      .def_prop_ro("version", &Lease::version)
      .def_prop_ro("text", [](const Lease& self) { return nb::bytes(self.text().data(), self.text().size()); })
      .def("array", &array_of, "is_own"_a, "is_writable"_a);
  nb::class_<SlotReader>(m, "SlotReader")
      .def(nb::new_([](int pid, int file, nb::bytes token, const std::string& name) {
             const Token known = token_of(token);
             return without_gil([&] { return std::make_shared<SlotReader>(pid, file, known, name); });
           }), "pid"_a, "file"_a, "token"_a, "name"_a)
      .def_prop_ro("newest", &SlotReader::newest)
      .def_prop_ro("is_open", &SlotReader::is_open)
      .def("wait", &wait, "after"_a, "seconds"_a)
      .def("hold", [](SlotReader& self) { return without_gil([&] { return self.hold(); }); });
}

}  // namespace torsh::python
