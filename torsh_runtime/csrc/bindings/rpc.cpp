#include "bindings/rpc.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/ndarray.hpp"
#include "bindings/signals.hpp"
#include "common/failure.hpp"
#include "rpc/hub.hpp"
#include "transport/shm/reach.hpp"

namespace torsh::python {
namespace {

using namespace nb::literals;
using rpc::Call;
using rpc::CallPtr;
using rpc::FrameHeader;
using rpc::Hub;
using rpc::Item;
using rpc::Kind;
using rpc::Message;
using rpc::ParcelPtr;
using rpc::Part;

constexpr std::size_t as_bytes_limit = 64 << 10;

// The buffers of a pickle for as long as they are read. Made and let go of with the GIL.
struct Buffers {
  std::vector<Py_buffer> views;
  std::vector<std::span<const std::byte>> spans;
  nb::object pickle;

  explicit Buffers(nb::bytes body, nb::list given) : pickle(body) {
    views.reserve(given.size());
    for (nb::handle each : given) {
      Py_buffer view;
      if (PyObject_GetBuffer(each.ptr(), &view, PyBUF_ANY_CONTIGUOUS) != 0) throw nb::python_error();
      views.push_back(view);
      spans.emplace_back(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
    }
  }
  ~Buffers() {
    for (Py_buffer& view : views) PyBuffer_Release(&view);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
};

nb::object as_object(const Part& part) {
  if (part.bytes == 0) return nb::bytes("", 0);
  return as_array(part.block, part.data(), part.bytes);
}

// (kind, call, number, seal, pickle, buffers)
nb::object as_tuple(const Message& message) {
  const FrameHeader& header = message.header;
  nb::list buffers;
  for (const Part& part : message.buffers) buffers.append(as_object(part));
  const Part& body = message.pickle;
  nb::object pickle = body.bytes <= as_bytes_limit ? nb::object(nb::bytes(body.data(), body.bytes)) : as_object(body);
  return nb::make_tuple(static_cast<int>(header.kind), header.call, header.number, nb::bytes(header.seal.data(), header.seal.size()), pickle, buffers);
}

// Lets go of memory of Python's that nobody reads any more. With the GIL.
void clear_garbage(Hub& hub) {
  const std::vector<std::shared_ptr<void>> gone = hub.garbage();
  (void)gone;
}

template <typename Step>
auto guarded(Hub& hub, Step step) {
  clear_garbage(hub);
  try {
    const WithoutGil unlocked;
    return step();
  } catch (const Interrupted&) {
    throw nb::python_error();
  }
}

ParcelPtr pack(Hub& hub, std::uint64_t connection, Kind kind, std::uint64_t call, std::uint64_t number, double left, nb::bytes seal, nb::bytes pickle,
               nb::list given) {
  FrameHeader header;
  header.kind = kind;
  header.call = call;
  header.number = number;
  header.left = left;
  if (seal.size() != header.seal.size()) throw nb::value_error("the seal must have 32 bytes");
  if (given.size() > FrameHeader::max_buffers) throw nb::value_error("too many buffers for one call");
  std::memcpy(header.seal.data(), seal.data(), header.seal.size());
  auto buffers = std::make_shared<Buffers>(pickle, given);
  const std::span<const std::byte> body(static_cast<const std::byte*>(pickle.data()), pickle.size());
  const bool may_lend = given.size() != 0 && hub.may_lend(connection);
  return rpc::Packing::pack(header, body, buffers->spans, may_lend, buffers);
}

CallPtr begin(Hub& hub, std::uint64_t connection, std::uint64_t call, std::uint64_t number, double left, nb::bytes seal, nb::bytes pickle,
              nb::list buffers, double deadline) {
  ParcelPtr request = pack(hub, connection, Kind::request, call, number, left, seal, pickle, buffers);
  return guarded(hub, [&] { return hub.call(connection, std::move(request), deadline); });
}

void reply(Hub& hub, std::uint64_t connection, bool is_error, std::uint64_t call, std::uint64_t number, nb::bytes seal, nb::bytes pickle,
           nb::list buffers) {
  ParcelPtr parcel = pack(hub, connection, is_error ? Kind::error : Kind::result, call, number, 0, seal, pickle, buffers);
  guarded(hub, [&] { hub.send(connection, std::move(parcel)); });
}

// (what, whether another thread is to be started, connection, deadline or None, message, call, reason)
nb::object next(Hub& hub, int done) {
  const Item item = guarded(hub, [&] { return hub.next(static_cast<Item::What>(done)); });
  nb::object deadline = nb::none(), message = nb::none(), call = nb::none();
  std::uint64_t connection = item.connection;
  if (item.request) {
    connection = item.request->connection;
    if (item.request->header.left > 0) deadline = nb::float_(item.request->came + item.request->header.left);
    message = as_tuple(*item.request);
  }
  if (item.call) call = nb::cast(item.call);
  return nb::make_tuple(static_cast<int>(item.what), item.needs_thread, connection, deadline, message, call, item.reason);
}

// A reply as_tuple(), once it is there; it is given away.
nb::object take_reply(Call& call) {
  if (!call.is_over()) return nb::none();
  const std::shared_ptr<Message> message = std::move(call.reply);
  return message ? as_tuple(*message) : nb::none();
}

struct Probe {
  std::uint64_t word;
};

}  // namespace

void bind_rpc(nb::module_& m) {
  nb::exception<rpc::Ended>(m, "Ended", PyExc_ConnectionError);
  nb::class_<Call>(m, "Call")
      .def_ro("number", &Call::number)
      .def_ro("connection", &Call::connection)
      .def_prop_ro("is_over", &Call::is_over)
      .def_prop_ro("has_reply", [](const Call& call) { return call.state.load() == Call::State::done; })
      .def_prop_ro("reason", [](const Call& call) { return call.is_over() ? call.reason : std::string(); })
      .def("take_reply", &take_reply);
  nb::class_<Hub>(m, "Hub")
      .def(nb::new_([](std::size_t threads, std::size_t bytes, double heartbeat) {
             auto hub = std::make_shared<Hub>(rpc::HubSetup{threads, bytes, heartbeat, interrupted});
             hub->collect = [weak = std::weak_ptr<Hub>(hub)] {
               const WithGil locked;
               if (const auto still = weak.lock()) clear_garbage(*still);
             };
             return hub;
           }), "threads"_a, "bytes"_a, "heartbeat"_a)
      .def("add", [](Hub& hub, int socket, int pid) { return guarded(hub, [&] { return hub.add(Descriptor(socket), pid); }); })
      .def("call", &begin)
      .def("reply", &reply)
      .def("wait", [](Hub& hub, const CallPtr& call, double until, bool is_serving) {
        return guarded(hub, [&] { return hub.wait(call, until, is_serving); });
      })
      .def("wait_for_room", [](Hub& hub, std::uint64_t connection, std::size_t bytes, double until, bool is_serving) {
        return guarded(hub, [&] { return hub.wait_for_room(connection, bytes, until, is_serving); });
      })
      .def("announce", [](Hub& hub, const CallPtr& call) { return guarded(hub, [&] { return hub.announce(call); }); })
      .def("forget", [](Hub& hub, const CallPtr& call) { return guarded(hub, [&] { return hub.forget(call); }); })
      .def_prop_ro("pending", [](Hub& hub) { return guarded(hub, [&] { return hub.pending(); }); })
      .def_prop_ro("serving", [](Hub& hub) { return guarded(hub, [&] { return hub.serving(); }); })
      .def("next", &next)
      .def("begin_wait", [](Hub& hub) { guarded(hub, [&] { hub.begin_wait(); }); })
      .def("end_wait", [](Hub& hub) { guarded(hub, [&] { hub.end_wait(); }); })
      .def("end", [](Hub& hub, std::uint64_t connection, const std::string& reason) { guarded(hub, [&] { hub.end(connection, reason); }); })
      .def("close", [](Hub& hub, double until) { guarded(hub, [&] { hub.close(until); }); });
  nb::class_<Probe>(m, "Probe")
      .def("__init__", [](Probe* self, std::uint64_t word) { new (self) Probe{word}; })
      .def_prop_ro("address", [](const Probe& probe) { return reinterpret_cast<std::uint64_t>(&probe.word); })
      .def_ro("word", &Probe::word);
  m.def("can_read_memory", [](int pid, std::uint64_t address, std::uint64_t word) {
    std::uint64_t found = 0;
    return shm::read_memory(pid, reinterpret_cast<std::byte*>(&found), address, sizeof found) && found == word;
  });
}

}  // namespace torsh::python
