// Messages as Python sends and receives them. All return a Pending, which has been waited for unless async_op.
#include <nanobind/stl/optional.h>

#include "bindings/rank.hpp"
#include "bindings/view.hpp"

namespace torsh::python {
namespace {

using Tag = std::optional<std::uint64_t>;  // none: any

Awaited awaited(bool async_op) { return async_op ? Awaited::later : Awaited::at_once; }

template <class... Views>
nb::object message(Rank& rank, TransferPtr transfer, double timeout, bool async_op, Views&&... views) {
  auto kept = std::make_shared<KeptViews<Views...>>(std::move(views)...);
  Pending pending(rank, std::move(transfer), std::move(kept), timeout);
  if (!async_op) {
    pending.wait(std::nullopt);
  } else if (!pending.done()) {
    pending.go_on();
  }
  return nb::cast(std::move(pending));
}

void check_source(Rank& rank, int src) {
  if (src != any_source) rank.check_rank("src", src);
  if (src == rank.group().rank()) throw nb::value_error("src is this rank itself");
}

// An object's bytes are of whatever size, and the user's messages never meet them.
template <Purpose purpose>
nb::object send(Rank& rank, nb::handle array, int dst, std::uint64_t tag, double timeout, bool async_op) {
  rank.check_rank("dst", dst);
  if (dst == rank.group().rank()) throw nb::value_error("dst is this rank itself");
  View view(array, false, rank.stage());
  const Label label{.purpose = purpose, .tag = tag, .call = view.call(OpKind::send), .awaited = awaited(async_op)};
  TransferPtr transfer = rank.guarded([&] { return rank.group().send(dst, label, view.piece()); });
  return message(rank, std::move(transfer), timeout, async_op, std::move(view));
}

nb::object recv(Rank& rank, nb::handle array, int src, Tag tag, double timeout, bool async_op) {
  check_source(rank, src);
  View view(array, true, rank.stage());
  const Label label{.tag = tag.value_or(0), .call = view.call(OpKind::recv), .any_tag = !tag, .awaited = awaited(async_op)};
  TransferPtr transfer = rank.guarded([&] { return rank.group().receive(src, label, view.piece()); });
  return message(rank, std::move(transfer), timeout, async_op, std::move(view));
}

nb::object take_object(Rank& rank, int src, std::uint64_t tag, double timeout, bool async_op) {
  check_source(rank, src);
  const Label label{.purpose = Purpose::object, .tag = tag, .call = {.kind = OpKind::recv}, .awaited = awaited(async_op)};
  return message(rank, rank.guarded([&] { return rank.group().take(src, label); }), timeout, async_op);
}

// A Pending of a message of the user's that could be received: when there is one, or None if there is none
// now.
nb::object probe(Rank& rank, int src, Tag tag, double timeout, bool only_now) {
  check_source(rank, src);
  const Label label{.tag = tag.value_or(0), .call = {.kind = OpKind::recv}, .any_tag = !tag};
  TransferPtr found = rank.guarded([&] { return rank.group().probe(src, label, only_now); });
  return found ? message(rank, std::move(found), timeout, false) : nb::none();
}

}  // namespace

void bind_messages(nb::class_<Rank>& group) {
  using namespace nb::literals;
  group.def("send", &send<Purpose::user>)
      .def("send_object", &send<Purpose::object>)
      .def("recv", &recv, "array"_a, "src"_a, "tag"_a.none(), "timeout"_a, "async_op"_a)
      .def("take_object", &take_object)
      .def("probe", &probe, "src"_a, "tag"_a.none(), "timeout"_a, "only_now"_a);
}

}  // namespace torsh::python
