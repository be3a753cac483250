#include "bindings/rank.hpp"

#include <nanobind/stl/vector.h>

#include "bindings/view.hpp"

namespace torsh::python {
namespace {

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

// Of a list of arrays the shape is the elements of the first ones.
nb::tuple describe(const Call& call) {
  nb::list shape;
  const std::size_t most = call.is_of_list() ? Call::max_dims - 1 : Call::max_dims;
  for (std::size_t i = 0; i < most && i < call.dims; ++i) shape.append(call.shape[i]);
  return nb::make_tuple(static_cast<int>(call.kind), static_cast<int>(call.dtype), static_cast<int>(call.op),
                        call.root, static_cast<int>(call.dims), nb::tuple(shape));
}

nb::tuple facts(const Failure& failure) {
  return nb::make_tuple(static_cast<int>(failure.kind), failure.rank, failure.reporter, static_cast<int>(failure.op),
                        failure.sequence, failure.seconds, failure.missing, describe(failure.own),
                        describe(failure.other));
}

}  // namespace

void Rank::raise(const Failure& failure) const {
  const nb::object error = failure_(*facts(failure));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

Rank::Rank(GroupSetup setup, const Noting& noting, nb::object stage, nb::object failure, nb::object complete, nb::object begun)
    : record_(noting.record),
      recording_(noting.recording),
      stage_(std::move(stage)),
      failure_(std::move(failure)),
      complete_(std::move(complete)),
      begun_(std::move(begun)),
      group_([&] {
        setup.node.progress = record_.get();
        setup.node.recorder = Recorder(recording_.get(), noting.place, setup.node.group, setup.node.world);
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

void Rank::handshake(double timeout, std::optional<bool> known_cross_memory) {
  guarded([&] { group_->handshake(timeout, known_cross_memory); });
}

void Rank::abort() {
  guarded([&] { group_->abort(); });
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

}  // namespace torsh::python
