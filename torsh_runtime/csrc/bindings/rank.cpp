#include "bindings/rank.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>

namespace torsh::python {
namespace {

constexpr std::size_t most_packed = 1 << 20;

// Bytes up to which an array is packed with others: an operation costs as much as some KiB, which is more
// where ranks take turns on processors and most where messages travel; but packing costs copies.
std::size_t packed_limit(Group& group) {
  if (!group.in_node()) return 64 << 10;
  return group.channel().is_roomy() ? 8 << 10 : 32 << 10;
}

template <class... Views>
struct KeptViews final : Kept {
  explicit KeptViews(Views&&... given) : views(std::move(given)...) {}
  void finish() override {
    std::apply([](auto&... each) { (finish_one(each), ...); }, views);
  }
  static void finish_one(View& view) { view.finish(); }
  static void finish_one(std::vector<View>& list) {
    for (View& view : list) view.finish();
  }

  std::tuple<Views...> views;
};

struct KeptCall final : Kept {
  explicit KeptCall(nb::object given) : call(std::move(given)) {}
  void finish() override {}

  const nb::object call;
};

// From a thread that Python may know nothing of.
void call_python(PyObject* function) {
  const WithGil locked;
  const nb::object result = nb::steal(PyObject_CallNoArgs(function));
  if (!result.is_valid()) PyErr_WriteUnraisable(function);
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

// What all ranks must agree on where arrays are given one by one: their sizes stand for the shape.
Call list_call(OpKind kind, DType dtype, const std::vector<View>& list, ReduceOp op = ReduceOp::sum) {
  Call call{.kind = kind, .dtype = dtype, .op = op};
  call.dims = static_cast<std::uint8_t>(std::min<std::size_t>(list.size(), 255));
  for (std::size_t i = 0; i < list.size(); ++i) {
    call.count = call.count * 0x9E3779B97F4A7C15ull + list[i].count();
    if (i < Call::max_dims) call.shape[i] = list[i].count();
  }
  return call;
}

}  // namespace

Record::Record(nb::handle object) {
  if (object.is_none()) return;
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
  const bool aligned = reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(Progress) == 0;
  if (!aligned || static_cast<std::size_t>(view_.len) < sizeof(Progress)) {
    PyBuffer_Release(&view_);
    throw nb::value_error("the record of a status page is too small or not aligned");
  }
}

void Rank::raise(const Failure& failure) const {
  const nb::object error = failure_(*facts(failure));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Rank::Rank(GroupSetup setup, nb::handle record, nb::object stage, nb::object failure)
    : record_(record), stage_(std::move(stage)), failure_(std::move(failure)), group_([&] {
        setup.node.progress = record_.progress();
        return std::make_unique<Group>(std::move(setup));
      }()) {}

// The threads of the rank's process do not exist in a fork of it: there is nothing to be ended. And a
// thread cannot be ended by what runs on it.
Rank::~Rank() {
  if (group_->is_fork() || group_->is_within_run()) {
    (void)group_.release();
  } else {
    close();
  }
}

void Rank::meet(double timeout, std::optional<bool> known_reach) {
  guarded([&] { group_->meet(timeout, known_reach); });
}

void Rank::abort() {
  guarded([&] { group_->abort(); });
}

template <class Operation, class... Views>
nb::object Rank::perform(const Call& call, Operation operation, double timeout, bool async_op, Views&&... views) {
  if (!async_op) {
    guarded([&] { group_->perform(call, operation, timeout); });
    (KeptViews<Views...>::finish_one(views), ...);
    return nb::none();
  }
  auto kept = std::make_shared<KeptViews<Views...>>(std::move(views)...);
  const JobPtr job = guarded([&] { return group_->start(call, operation, timeout); });
  return nb::cast(Pending(*this, job, std::move(kept)));
}

void Rank::keep(std::function<bool()> over, std::shared_ptr<Kept> kept) {
  std::vector<std::shared_ptr<Kept>> done;  // let go when the list is whole again: that may run Python code
  std::erase_if(under_way_, [&done](auto& each) {
    const bool is_over = each.first();
    if (is_over) done.push_back(std::move(each.second));
    return is_over;
  });
  under_way_.emplace_back(std::move(over), std::move(kept));
}

nb::object Rank::all_reduce(nb::handle array, nb::handle op, double timeout, bool async_op) {
  View view(array, true, stage_);
  const across::ReduceSpec spec = reduction(op, view.dtype());
  const Call call = view.call(OpKind::all_reduce, spec.op);
  const AllReduce operation{spec, view.data(), view.count()};
  return perform(call, operation, timeout, async_op, std::move(view));
}

// All ranks come to the same runs, as they have the same arrays.
nb::list Rank::all_reduce_list(nb::handle arrays, nb::handle op, double timeout, bool async_op) {
  std::vector<View> list = views(arrays, true, stage_);
  for (const View& view : list) (void)reduction(op, view.dtype());
  const std::size_t limit = packed_limit(*group_);
  nb::list begun;
  for (std::size_t first = 0; first < list.size();) {
    const Elements dtype = list[first].dtype();
    std::size_t end = first, bytes = 0;
    while (end < list.size() && list[end].dtype() == dtype && list[end].bytes() <= limit && bytes <= most_packed) {
      bytes += list[end++].bytes();
    }
    end = std::max(end, first + 1);
    std::vector<View> run(std::make_move_iterator(list.begin() + static_cast<std::ptrdiff_t>(first)),
                          std::make_move_iterator(list.begin() + static_cast<std::ptrdiff_t>(end)));
    begun.append(reduce_run(std::move(run), op, timeout, async_op));
    first = end;
  }
  return begun;
}

nb::object Rank::reduce_run(std::vector<View> run, nb::handle op, double timeout, bool async_op) {
  View& only = run.front();
  const across::ReduceSpec spec = reduction(op, only.dtype());
  if (run.size() == 1) {
    const AllReduce operation{spec, only.data(), only.count()};
    return perform(only.call(OpKind::all_reduce, spec.op), operation, timeout, async_op, std::move(only));
  }
  const Call call = list_call(OpKind::all_reduce, spec.type, run, spec.op);
  const AllReduceList operation{spec, pieces(run)};
  return perform(call, operation, timeout, async_op, std::move(run));
}

nb::object Rank::reduce(nb::handle array, int root, nb::handle op, double timeout, bool async_op) {
  check_rank("root", root);
  View view(array, root == group_->rank(), stage_);
  const across::ReduceSpec spec = reduction(op, view.dtype());
  const Call call = view.call(OpKind::reduce, spec.op, root);
  const Reduce operation{spec, view.data(), view.count(), root};
  return perform(call, operation, timeout, async_op, std::move(view));
}

nb::object Rank::broadcast(nb::handle array, int root, double timeout, bool async_op) {
  check_rank("root", root);
  View view(array, root != group_->rank(), stage_);
  const Call call = view.call(OpKind::broadcast, ReduceOp::sum, root);
  const Broadcast operation{view.piece(), root};
  return perform(call, operation, timeout, async_op, std::move(view));
}

nb::object Rank::all_gather(nb::handle output, nb::handle array, double timeout, bool async_op) {
  View to(output, true, stage_), from(array, false, stage_);
  check_parts(to, from);
  const Call call = from.call(OpKind::all_gather);
  const AllGather operation{Parts(to.piece()), from.piece()};
  return perform(call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object Rank::all_gather_list(nb::handle outputs, nb::handle array, double timeout, bool async_op) {
  View from(array, false, stage_);
  std::vector<View> to = views(outputs, true, stage_);
  check_list("outputs", to, from.dtype());
  if (to[static_cast<std::size_t>(group_->rank())].count() != from.count()) {
    throw nb::value_error("outputs[rank] must be of the size of this rank's array");
  }
  const Call call = list_call(OpKind::all_gather, from.dtype(), to);
  const AllGather operation{Parts(pieces(to)), from.piece()};
  return perform(call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object Rank::gather(nb::handle outputs, nb::handle array, int root, double timeout, bool async_op) {
  check_rank("root", root);
  View from(array, false, stage_);
  std::vector<View> to = views(outputs, true, stage_);
  if (root == group_->rank()) check_list("outputs", to, from.dtype());
  check_own("outputs", to, root, from);
  const Call call{.kind = OpKind::gather, .dtype = from.dtype(), .root = root};  // each rank has its own size
  const Gather operation{Parts(pieces(to)), from.piece(), root};
  return perform(call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object Rank::scatter(nb::handle array, nb::handle inputs, int root, double timeout, bool async_op) {
  check_rank("root", root);
  View to(array, true, stage_);
  std::vector<View> from = views(inputs, false, stage_);
  if (root == group_->rank()) check_list("inputs", from, to.dtype());
  check_own("inputs", from, root, to);
  const Call call{.kind = OpKind::scatter, .dtype = to.dtype(), .root = root};  // each rank has its own size
  const Scatter operation{to.piece(), Parts(pieces(from)), root};
  return perform(call, operation, timeout, async_op, std::move(to), std::move(from));
}

nb::object Rank::reduce_scatter(nb::handle output, nb::handle array, nb::handle op, double timeout, bool async_op) {
  View to(output, true, stage_), from(array, false, stage_);
  check_parts(from, to);
  const across::ReduceSpec spec = reduction(op, to.dtype());
  const Call call = to.call(OpKind::reduce_scatter, spec.op);
  const ReduceScatter operation{spec, to.piece(), Parts(from.piece())};
  return perform(call, operation, timeout, async_op, std::move(to),
                 std::move(from));
}

nb::object Rank::reduce_scatter_list(nb::handle output, nb::handle inputs, nb::handle op, double timeout,
                                     bool async_op) {
  View to(output, true, stage_);
  std::vector<View> from = views(inputs, false, stage_);
  check_list("inputs", from, to.dtype());
  if (from[static_cast<std::size_t>(group_->rank())].count() != to.count()) {
    throw nb::value_error("inputs[rank] must be of the size of this rank's output");
  }
  const across::ReduceSpec spec = reduction(op, to.dtype());
  const Call call = list_call(OpKind::reduce_scatter, to.dtype(), from, spec.op);
  const ReduceScatter operation{spec, to.piece(), Parts(pieces(from))};
  return perform(call, operation, timeout, async_op, std::move(to),
                 std::move(from));
}

nb::object Rank::all_to_all(nb::handle output, nb::handle array, double timeout, bool async_op) {
  View to(output, true, stage_), from(array, false, stage_);
  if (to.dtype() != from.dtype()) throw nb::value_error("input and output must have the same dtype");
  const auto ranks = static_cast<std::uint64_t>(group_->ranks());
  if (to.count() != from.count() || from.count() % ranks != 0) {
    throw nb::value_error("input and output must be of one size that world_size divides");
  }
  const Call call = from.call(OpKind::all_to_all);
  const AllToAll operation{Parts(to.piece()), Parts(from.piece())};
  return perform(call, operation, timeout, async_op, std::move(to),
                 std::move(from));
}

nb::object Rank::all_to_all_list(nb::handle outputs, nb::handle inputs, double timeout, bool async_op) {
  std::vector<View> to = views(outputs, true, stage_), from = views(inputs, false, stage_);
  const Elements dtype = to.empty() ? Elements{DType::uint8, nullptr} : to.front().dtype();
  check_list("outputs", to, dtype);
  check_list("inputs", from, dtype);
  const auto own = static_cast<std::size_t>(group_->rank());
  if (to[own].count() != from[own].count()) throw nb::value_error("outputs[rank] and inputs[rank] must be of one size");
  const Call call{.kind = OpKind::all_to_all, .dtype = dtype};  // sizes are a matter of each pair
  const AllToAll operation{Parts(pieces(to)), Parts(pieces(from))};
  return perform(call, operation, timeout, async_op, std::move(to),
                 std::move(from));
}

nb::object Rank::barrier(double timeout, bool async_op) {
  return perform(Call{.kind = OpKind::barrier}, Barrier{}, timeout, async_op);
}

nb::object Rank::send(nb::handle array, int dst, std::uint64_t tag, double timeout, bool async_op) {
  return begin_send(array, dst, Purpose::user, tag, timeout, async_op);
}

nb::object Rank::send_object(nb::handle bytes, int dst, std::uint64_t tag, double timeout, bool async_op) {
  return begin_send(bytes, dst, Purpose::object, tag, timeout, async_op);
}

nb::object Rank::begin_send(nb::handle array, int dst, Purpose purpose, std::uint64_t tag, double timeout, bool async_op) {
  check_rank("dst", dst);
  if (dst == group_->rank()) throw nb::value_error("dst is this rank itself");
  View view(array, false, stage_);
  const Label label{.purpose = purpose, .tag = tag, .call = view.call(OpKind::send)};
  TransferPtr transfer = guarded([&] { return group_->send(dst, label, view.piece()); });
  return message(std::move(transfer), timeout, async_op, std::move(view));
}

nb::object Rank::recv(nb::handle array, int src, std::optional<std::uint64_t> tag, double timeout, bool async_op) {
  check_source(src);
  View view(array, true, stage_);
  const Label label{.tag = tag.value_or(0), .call = view.call(OpKind::recv), .any_tag = !tag};
  TransferPtr transfer = guarded([&] { return group_->receive(src, label, view.piece()); });
  return message(std::move(transfer), timeout, async_op, std::move(view));
}

nb::object Rank::take_object(int src, std::uint64_t tag, double timeout, bool async_op) {
  check_source(src);
  const Label label{.purpose = Purpose::object, .tag = tag, .call = {.kind = OpKind::recv}};
  return message(guarded([&] { return group_->take(src, label); }), timeout, async_op);
}

nb::object Rank::probe(int src, std::optional<std::uint64_t> tag, double timeout, bool only_now) {
  check_source(src);
  const Label label{.tag = tag.value_or(0), .call = {.kind = OpKind::recv}, .any_tag = !tag};
  TransferPtr found = guarded([&] { return group_->probe(src, label, only_now); });
  return found ? message(std::move(found), timeout, false) : nb::none();
}

template <class... Views>
nb::object Rank::message(TransferPtr transfer, double timeout, bool async_op, Views&&... views) {
  auto kept = std::make_shared<KeptViews<Views...>>(std::move(views)...);
  Pending pending(*this, transfer, kept, timeout);
  if (!async_op) {
    pending.wait(std::nullopt);
  } else if (!pending.done()) {
    pending.go_on();
  }
  return nb::cast(std::move(pending));
}

void Rank::check_source(int src) const {
  if (src != any_source) check_rank("src", src);
  if (src == group_->rank()) throw nb::value_error("src is this rank itself");
}

bool Rank::all_come() {
  return guarded([&] { return group_->all_come(); });
}

nb::object Rank::run(nb::object call) {
  PyObject* const function = call.ptr();
  auto kept = std::make_shared<KeptCall>(std::move(call));
  const JobPtr job = guarded([&] { return group_->run([function] { call_python(function); }); });
  return nb::cast(Pending(*this, job, std::move(kept)));
}

void Rank::add_region(nb::handle memory, std::size_t stride, std::size_t bytes, double timeout) {
  const View view(memory, true, stage_);
  const auto ranks = static_cast<std::size_t>(group_->channel().ranks());
  if (view.bytes() != stride * ranks || bytes > stride) {
    throw nb::value_error("the memory must hold stride bytes for each rank of the node");
  }
  guarded([&] { group_->add_region(view.data(), stride, bytes, timeout); });
}

void Rank::close() {
  guarded([&] { group_->close(); });
}

void Rank::check_rank(const char* name, int rank) const {
  if (rank >= 0 && rank < group_->ranks()) return;
  throw nb::value_error((std::string(name) + "=" + std::to_string(rank) + " is not a rank of the group (0 to " +
                         std::to_string(group_->ranks() - 1) + ")").c_str());
}

void Rank::check_parts(const View& all, const View& part) const {
  if (all.dtype() != part.dtype()) throw nb::value_error("input and output must have the same dtype");
  if (all.count() != part.count() * static_cast<std::uint64_t>(group_->ranks())) {
    throw nb::value_error("the larger array must hold exactly world_size times the elements of the smaller");
  }
}

void Rank::check_own(const char* name, const std::vector<View>& list, int root, const View& own) const {
  if (root != group_->rank() || list[static_cast<std::size_t>(root)].count() == own.count()) return;
  throw nb::value_error((std::string(name) + "[rank] must be of the size of this rank's array").c_str());
}

void Rank::check_list(const char* name, const std::vector<View>& list, Elements dtype) const {
  if (list.size() != static_cast<std::size_t>(group_->ranks())) {
    throw nb::value_error((std::string(name) + " must hold one array for each rank").c_str());
  }
  for (const View& view : list) {
    if (view.dtype() != dtype) throw nb::value_error("all arrays of a call must have the same dtype");
  }
}

}  // namespace torsh::python
