// The collectives as Python calls them.
#include <algorithm>

#include "bindings/parts.hpp"
#include "bindings/rank.hpp"

namespace torsh::python {
namespace {

constexpr std::size_t most_packed = 1 << 20;

// Bytes up to which an array is packed with others: an operation costs as much as some KiB, which is more
// where ranks take turns on processors and most where messages travel; but packing costs copies.
std::size_t packed_limit(Group& group) {
  if (!group.in_node()) return 64 << 10;
  return group.channel().has_cpu_per_rank() ? 8 << 10 : 32 << 10;
}

across::ReduceSpec reduction(nb::handle op, Elements dtype) {
  if (dtype.opaque()) {
    PyErr_Format(PyExc_TypeError, "arrays of %U can be moved, but no reduction is defined for them", dtype.name);
    throw nb::python_error();
  }
  across::ReduceSpec spec{.type = dtype, .op = ReduceOp::premul_sum, .factor = 1.0};
  if (PyLong_Check(op.ptr()) && !PyBool_Check(op.ptr())) {
    const long number = PyLong_AsLong(op.ptr());
    const bool plain = number >= 0 && number < static_cast<long>(ReduceOp::premul_sum);
    if (!plain) {
      PyErr_Clear();
      throw nb::value_error("op must be a ReduceOp; of PREMUL_SUM give the factor: PremulSum(factor)");
    }
    spec.op = static_cast<ReduceOp>(number);
  } else if (PyTuple_Check(op.ptr()) && PyTuple_Size(op.ptr()) == 1) {
    spec.factor = nb::cast<double>(op[0]);
  } else {
    throw nb::type_error("op must be a ReduceOp or PremulSum");
  }
  if (!is_reducible(dtype, spec.op)) throw nb::type_error("this reduction is not defined for arrays of this dtype; see ReduceOp");
  return spec;
}

template <class Operation, class... Views>
nb::object perform(Rank& rank, const Call& call, Operation operation, double timeout, bool async_op, Views&&... views) {
  if (!async_op) {
    rank.guarded([&] { rank.group().perform(call, operation, timeout); });
    (views.finish(), ...);
    return rank.complete();
  }
  auto kept = std::make_shared<KeptViews<Views...>>(std::move(views)...);
  const JobPtr job = rank.guarded([&] { return rank.group().start(call, operation, timeout); });
  return rank.begun(Pending(rank, job, std::move(kept)));
}

void check_parts(Rank& rank, const char* name, const PartViews& parts, Elements dtype, std::uint64_t own) {
  parts.check(name, dtype, own, rank.group().rank(), rank.group().ranks());
}

// Equal parts are of a shape that all ranks know from their own.
Call shared_call(OpKind kind, const PartViews& parts, const View& own, ReduceOp op = ReduceOp::sum) {
  return parts.whole() ? own.call(kind, op) : parts.call(kind, op);
}

nb::object reduce_view(Rank& rank, View&& view, nb::handle op, double timeout, bool async_op) {
  const across::ReduceSpec spec = reduction(op, view.dtype());
  const AllReduce operation{spec, view.data(), view.count()};
  return perform(rank, view.call(OpKind::all_reduce, spec.op), operation, timeout, async_op, std::move(view));
}

nb::object reduce_packed(Rank& rank, std::vector<View> pack, nb::handle op, double timeout, bool async_op) {
  const AllReduceCoalesced operation{reduction(op, pack.front().dtype()), pieces(pack)};
  PartViews kept(std::move(pack));
  const Call call = kept.call(OpKind::all_reduce, operation.spec.op);
  return perform(rank, call, operation, timeout, async_op, std::move(kept));
}

nb::object all_reduce(Rank& rank, nb::handle array, nb::handle op, double timeout, bool async_op) {
  return reduce_view(rank, View(array, true, rank.stage()), op, timeout, async_op);
}

// The end of those that are packed with the first of them; it alone, if none is.
using Iterator = std::vector<View>::iterator;
Iterator end_of_pack(Iterator first, Iterator last, std::size_t limit) {
  const Elements dtype = first->dtype();
  std::size_t bytes = 0;
  const auto fits = [&](const View& view) {
    bytes += view.bytes();
    return view.dtype() == dtype && view.bytes() <= limit && bytes <= most_packed;
  };
  return std::max(first + 1, std::find_if_not(first, last, fits));
}

// What is returned of each operation that was made of the arrays. All ranks come to the same packs, as they
// have the same arrays.
nb::list all_reduce_coalesced(Rank& rank, nb::handle arrays, nb::handle op, double timeout, bool async_op) {
  std::vector<View> list = views(arrays, true, rank.stage());
  for (const View& view : list) (void)reduction(op, view.dtype());
  const std::size_t limit = packed_limit(rank.group());
  nb::list begun;
  for (auto first = list.begin(); first != list.end();) {
    const auto end = end_of_pack(first, list.end(), limit);
    if (end - first == 1) {
      begun.append(reduce_view(rank, std::move(*first), op, timeout, async_op));
    } else {
      std::vector<View> pack(std::make_move_iterator(first), std::make_move_iterator(end));
      begun.append(reduce_packed(rank, std::move(pack), op, timeout, async_op));
    }
    first = end;
  }
  return begun;
}

nb::object reduce(Rank& rank, nb::handle array, int root, nb::handle op, double timeout, bool async_op) {
  rank.check_rank("root", root);
  View view(array, root == rank.group().rank(), rank.stage());
  const across::ReduceSpec spec = reduction(op, view.dtype());
  const Call call = view.call(OpKind::reduce, spec.op, root);
  const Reduce operation{spec, view.data(), view.count(), root};
  return perform(rank, call, operation, timeout, async_op, std::move(view));
}

nb::object broadcast(Rank& rank, nb::handle array, int root, double timeout, bool async_op) {
  rank.check_rank("root", root);
  View view(array, root != rank.group().rank(), rank.stage());
  const Call call = view.call(OpKind::broadcast, ReduceOp::sum, root);
  const Broadcast operation{view.piece(), root};
  return perform(rank, call, operation, timeout, async_op, std::move(view));
}

nb::object all_gather(Rank& rank, nb::handle outputs, nb::handle array, double timeout, bool async_op) {
  PartViews to(outputs, true, rank.stage());
  View from(array, false, rank.stage());
  check_parts(rank, "outputs", to, from.dtype(), from.count());
  const Call call = shared_call(OpKind::all_gather, to, from);
  const AllGather operation{to.parts(), from.piece()};
  return perform(rank, call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object gather(Rank& rank, nb::handle outputs, nb::handle array, int root, double timeout, bool async_op) {
  rank.check_rank("root", root);
  PartViews to(outputs, true, rank.stage());
  View from(array, false, rank.stage());
  if (root == rank.group().rank()) check_parts(rank, "outputs", to, from.dtype(), from.count());
  const Call call{.kind = OpKind::gather, .dtype = from.dtype(), .root = root};  // each rank has its own size
  const Gather operation{to.parts(), from.piece(), root};
  return perform(rank, call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object scatter(Rank& rank, nb::handle array, nb::handle inputs, int root, double timeout, bool async_op) {
  rank.check_rank("root", root);
  View to(array, true, rank.stage());
  PartViews from(inputs, false, rank.stage());
  if (root == rank.group().rank()) check_parts(rank, "inputs", from, to.dtype(), to.count());
  const Call call{.kind = OpKind::scatter, .dtype = to.dtype(), .root = root};  // each rank has its own size
  const Scatter operation{to.piece(), from.parts(), root};
  return perform(rank, call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object reduce_scatter(Rank& rank, nb::handle output, nb::handle inputs, nb::handle op, double timeout, bool async_op) {
  View to(output, true, rank.stage());
  PartViews from(inputs, false, rank.stage());
  check_parts(rank, "inputs", from, to.dtype(), to.count());
  const across::ReduceSpec spec = reduction(op, to.dtype());
  const Call call = shared_call(OpKind::reduce_scatter, from, to, spec.op);
  const ReduceScatter operation{spec, to.piece(), from.parts()};
  return perform(rank, call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object all_to_all(Rank& rank, nb::handle outputs, nb::handle inputs, double timeout, bool async_op) {
  PartViews to(outputs, true, rank.stage()), from(inputs, false, rank.stage());
  if (!to.whole() != !from.whole()) throw nb::value_error("outputs and inputs must be an array each, or a list each");
  const std::uint64_t own = from.count(rank.group().rank(), rank.group().ranks());
  check_parts(rank, "inputs", from, from.dtype(), own);
  check_parts(rank, "outputs", to, from.dtype(), own);
  Call call{.kind = OpKind::all_to_all, .dtype = from.dtype()};  // sizes are a matter of each pair
  if (from.whole()) call = from.whole()->call(OpKind::all_to_all);
  const AllToAll operation{to.parts(), from.parts()};
  return perform(rank, call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object barrier(Rank& rank, double timeout, bool async_op) {
  return perform(rank, Call{.kind = OpKind::barrier}, Barrier{}, timeout, async_op);
}

}  // namespace

void bind_collectives(nb::class_<Rank>& group) {
  using namespace nb::literals;
  group.def("all_reduce", &all_reduce, "array"_a, "op"_a, "timeout"_a, "async_op"_a = false)
      .def("all_reduce_coalesced", &all_reduce_coalesced, "arrays"_a, "op"_a, "timeout"_a, "async_op"_a = false)
      .def("reduce", &reduce, "array"_a, "root"_a, "op"_a, "timeout"_a, "async_op"_a = false)
      .def("broadcast", &broadcast, "array"_a, "root"_a, "timeout"_a, "async_op"_a = false)
      .def("all_gather", &all_gather, "outputs"_a, "input"_a, "timeout"_a, "async_op"_a = false)
      .def("gather", &gather, "outputs"_a.none(), "input"_a, "root"_a, "timeout"_a, "async_op"_a = false)
      .def("scatter", &scatter, "output"_a, "inputs"_a.none(), "root"_a, "timeout"_a, "async_op"_a = false)
      .def("reduce_scatter", &reduce_scatter, "output"_a, "inputs"_a, "op"_a, "timeout"_a, "async_op"_a = false)
      .def("all_to_all", &all_to_all, "outputs"_a, "inputs"_a, "timeout"_a, "async_op"_a = false)
      .def("barrier", &barrier, "timeout"_a, "async_op"_a = false);
}

}  // namespace torsh::python
