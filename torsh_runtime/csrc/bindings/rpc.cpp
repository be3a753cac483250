#include "bindings/rpc.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/ndarray.hpp"
#include "bindings/signals.hpp"
#include "common/clock.hpp"
#include "common/failure.hpp"
#include "rpc/hub.hpp"
#include "transport/shm/cross_memory.hpp"

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

// (whether it is an error, pickle, buffers)
nb::object as_tuple(const Message& message) {
  nb::list buffers;
  for (const Part& part : message.buffers) buffers.append(as_object(part));
  const Part& body = message.pickle;
  nb::object pickle = body.bytes <= as_bytes_limit ? nb::object(nb::bytes(body.data(), body.bytes)) : as_object(body);
  return nb::make_tuple(message.header.kind == Kind::error, pickle, buffers);
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

struct Given {
  std::shared_ptr<Buffers> buffers;
  Hub::Content content;
};

Given given(FrameHeader header, nb::bytes pickle, nb::list list) {
  if (list.size() > FrameHeader::max_buffers) throw nb::value_error("too many buffers for one call");
  auto buffers = std::make_shared<Buffers>(pickle, list);
  const std::span<const std::byte> body(static_cast<const std::byte*>(pickle.data()), pickle.size());
  return {buffers, {header, body, buffers->spans, buffers}};
}

// None if more is under way to the peer than may be.
nb::object begin(Hub& hub, std::uint64_t connection, nb::bytes pickle, nb::list buffers, double deadline) {
  FrameHeader header;
  header.kind = Kind::request;
  header.call = hub.new_call();
  if (deadline < std::numeric_limits<double>::infinity()) header.left = std::max(deadline - now(), 1e-6);
  const Given request = given(header, pickle, buffers);
  CallPtr call = guarded(hub, [&] { return hub.call(connection, request.content, deadline); });
  return call ? nb::cast(std::move(call)) : nb::none();
}

void reply(Hub& hub, std::uint64_t connection, bool is_error, std::uint64_t call, nb::bytes pickle, nb::list buffers) {
  FrameHeader header;
  header.kind = is_error ? Kind::error : Kind::result;
  header.call = call;
  const Given result = given(header, pickle, buffers);
  guarded(hub, [&] { hub.send(connection, result.content); });
}

constexpr const char* forged = "it has sent a call that the job's secret does not prove: somebody has got at the connection";

// A request that the peer has not sent comes as None.
// (what, whether another thread is to be started, connection, number of the call, deadline or None, message, call, reason)
nb::object next(Hub& hub, int done) {
  Item item = guarded(hub, [&] {
    Item found = hub.next(static_cast<Item::What>(done));
    if (found.request && !found.request->is_genuine()) {
      hub.end(found.request->connection, forged);
      found.request = nullptr;
    }
    return found;
  });
  nb::object deadline = nb::none(), message = nb::none(), call = nb::none();
  std::uint64_t connection = item.connection, number = 0;
  if (item.request) {
    connection = item.request->connection;
    number = item.request->header.call;
    if (item.request->header.left > 0) deadline = nb::float_(item.request->came + item.request->header.left);
    message = as_tuple(*item.request);
  }
  if (item.call) call = nb::cast(item.call);
  return nb::make_tuple(static_cast<int>(item.what), item.needs_thread, connection, number, deadline, message, call, item.reason);
}

// A reply as_tuple(), once it is there; it is given away. Throws Ended if the peer has not sent it.
nb::object take_reply(Hub& hub, Call& call) {
  if (!call.is_over()) return nb::none();
  const std::shared_ptr<Message> message = std::move(call.reply);
  if (!message) return nb::none();
  const auto check = [&] {
    if (message->is_genuine()) return;
    hub.end(message->connection, forged);
    throw rpc::Ended(forged);
  };
  message->pickle.bytes <= as_bytes_limit ? check() : guarded(hub, check);
  return as_tuple(*message);
}

rpc::Keys keys_of(nb::bytes own, nb::bytes peer) {
  rpc::Keys keys;
  for (const auto& [given, key] : {std::pair(&own, &keys.own), std::pair(&peer, &keys.peer)}) {
    if (given->size() < sizeof *key) throw nb::value_error("a key must have 16 bytes or more");
    std::memcpy(key->data(), given->data(), sizeof *key);
  }
  return keys;
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
      .def_prop_ro("reason", [](const Call& call) { return call.is_over() ? call.reason : std::string(); });
  nb::class_<Hub>(m, "Hub")
      .def(nb::new_([](std::size_t threads, std::size_t bytes, double heartbeat) {
             auto hub = std::make_shared<Hub>(rpc::HubSetup{threads, bytes, heartbeat, interrupted});
             hub->collect = [weak = std::weak_ptr<Hub>(hub)] {
               const WithGil locked;
               if (const auto still = weak.lock()) clear_garbage(*still);
             };
             return hub;
           }), "threads"_a, "bytes"_a, "heartbeat"_a)
      .def("add", [](Hub& hub, int socket, int pid, nb::bytes own, nb::bytes peer) {
        const rpc::Keys keys = keys_of(own, peer);
        return guarded(hub, [&] { return hub.add(Descriptor(socket), pid, keys); });
      })
      .def("call", &begin)
      .def("reply", &reply)
      .def("take_reply", &take_reply)
      .def("wait", [](Hub& hub, const CallPtr& call, double until, bool is_serving) {
        return guarded(hub, [&] { return hub.wait(call, until, is_serving); });
      })
      .def("wait_for_room", [](Hub& hub, std::uint64_t connection, bool is_reply, std::size_t bytes, double until, bool is_serving) {
        return guarded(hub, [&] { return hub.wait_for_room(connection, is_reply, bytes, until, is_serving); });
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
  m.def("siphash", [](nb::bytes key, nb::bytes message) {
    const SipTag tag = SipHash(keys_of(key, key).own).tag({static_cast<const std::byte*>(message.data()), message.size()});
    return nb::bytes(tag.data(), sizeof tag);
  });
  m.def("can_read_memory", [](int pid, std::uint64_t address, std::uint64_t word) {
    std::uint64_t found = 0;
    return shm::read_memory(pid, reinterpret_cast<std::byte*>(&found), address, sizeof found) && found == word;
  });
}

}  // namespace torsh::python
