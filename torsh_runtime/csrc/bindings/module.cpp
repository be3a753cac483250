// The module as Python sees it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/arrays.hpp"
#include "bindings/ndarray.hpp"
#include "bindings/rank.hpp"
#include "bindings/recorder.hpp"
#include "bindings/rpc.hpp"
#include "bindings/segments.hpp"
#include "bindings/signals.hpp"
#include "bindings/slots.hpp"
#include "bindings/view.hpp"
#include "common/kernels_level.hpp"

namespace nb = nanobind;
using torsh::DType;
using torsh::GroupSetup;
using torsh::ReduceOp;
using torsh::python::Completions;
using torsh::python::Pending;
using torsh::python::Rank;
using torsh::python::SegmentMemory;
using torsh::python::SharedArrays;
using torsh::python::Typed;
using torsh::across::Limits;
using torsh::across::Strategy;
using torsh::shm::Tuning;
using namespace nb::literals;

namespace {

DType dtype_of(int number) {
  if (number < 0 || number >= static_cast<int>(torsh::num_dtypes)) throw nb::value_error("no such dtype");
  return static_cast<DType>(number);
}

ReduceOp op_of(int number) {
  if (number < 0 || number >= static_cast<int>(torsh::num_reduce_ops)) throw nb::value_error("no such reduction");
  return static_cast<ReduceOp>(number);
}

// A kernel by itself, on buffers of bytes: for tests and benchmarks.
void reduce(nb::handle targets, nb::handle sources, int dtype, int op, std::size_t divisor, double factor) {
  const DType type = dtype_of(dtype);
  if (!torsh::is_reducible(type, op_of(op))) throw nb::type_error("this reduction is not defined for this dtype");
  const auto to = torsh::python::views(targets, true, nb::none()), from = torsh::python::views(sources, false, nb::none());
  if (from.empty()) throw nb::value_error("there must be a source");
  std::vector<std::byte*> ends;
  std::vector<const std::byte*> starts;
  for (const auto& view : to) ends.push_back(view.data());
  for (const auto& view : from) starts.push_back(view.data());
  const std::size_t bytes = from.front().bytes();
  for (const auto* list : {&to, &from}) {
    for (const auto& view : *list) {
      if (view.bytes() != bytes) throw nb::value_error("all buffers must be of one size");
    }
  }
  const torsh::Reduction reduction(type, op_of(op), starts.size(), divisor, factor);
  reduction({ends.data(), ends.size()}, starts.data(), bytes / torsh::size_of(type));
}

void bind_tuning(nb::module_& m) {
  nb::class_<Tuning>(m, "Tuning")
      .def("__init__", [](Tuning* self, int ranks) { new (self) Tuning(torsh::shm::default_tuning(ranks)); })
      .def_rw("whole_limit", &Tuning::whole_limit)
      .def_rw("crowded_whole_limit", &Tuning::crowded_whole_limit)
      .def_rw("block_bytes", &Tuning::block_bytes);
  nb::class_<Limits>(m, "Limits")
      .def(nb::init<>())
      .def_rw("leader", &Limits::leader)
      .def_rw("tree", &Limits::tree)
      .def_rw("segment", &Limits::segment)
      .def_rw("block", &Limits::block);
}

void make_group(Rank* self, int rank, const std::vector<std::vector<int>>& nodes, const SegmentMemory& segment, const Tuning& tuning,
                const std::vector<int>& pids, int neighbours, const std::vector<std::vector<int>>& links,
                double heartbeat, int strategy, const Limits& limits, nb::handle record, nb::handle recording,
                std::size_t place, std::uint32_t number, const std::vector<int>& job_ranks, nb::object stage, nb::object failure,
                nb::object complete, nb::object begun) {
  GroupSetup setup;
  for (const std::vector<int>& sockets : links) {
    std::vector<torsh::Descriptor>& owned = setup.links.emplace_back();
    for (const int socket : sockets) owned.emplace_back(socket);
  }
  setup.layout.rank = rank;
  setup.layout.nodes = nodes;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    const auto found = std::find(nodes[node].begin(), nodes[node].end(), rank);
    if (found == nodes[node].end()) continue;
    setup.layout.node = static_cast<int>(node);
    setup.node.rank = static_cast<int>(found - nodes[node].begin());
  }
  setup.node.group_ranks = setup.layout.local();
  if (setup.node.group_ranks.size() != pids.size()) throw nb::value_error("there must be a process for each rank of the node");
  setup.node.memory = segment.base;
  setup.node.pids = pids;
  setup.node.tuning = tuning;
  setup.node.group = number;
  setup.job_ranks = job_ranks;
  setup.node.world = static_cast<std::uint32_t>(setup.layout.ranks());
  setup.node.neighbours = neighbours;
  setup.heartbeat = heartbeat;
  setup.strategy = static_cast<Strategy>(strategy);
  setup.limits = limits;
  setup.interrupted = torsh::python::interrupted;
  new (self) Rank(std::move(setup), {record, recording, place}, std::move(stage), std::move(failure), std::move(complete), std::move(begun));
}

void bind_group(nb::module_& m) {
  auto group = nb::class_<Rank>(m, "Group")
      .def("__init__", &make_group, "rank"_a, "nodes"_a, "segment"_a, "tuning"_a, "pids"_a,
           "neighbours"_a, "links"_a, "heartbeat"_a, "strategy"_a, "limits"_a, "record"_a.none(), "recording"_a.none(), "place"_a, "number"_a, "job_ranks"_a = std::vector<int>(), "stage"_a, "failure"_a,
           "complete"_a, "begun"_a)
      .def("handshake", &Rank::handshake, "timeout"_a, "known_cross_memory"_a.none() = nb::none())
      .def_prop_ro("has_cross_memory", &Rank::has_cross_memory)
      .def_prop_ro("held_bytes", &Rank::held_bytes)
      .def_prop_ro("failed", &Rank::failed)
      .def("all_come", &Rank::all_come)
      .def("run", &Rank::run)
      .def("add_region", &Rank::add_region)
      .def("abort", &Rank::abort)
      .def("close", &Rank::close);
  torsh::python::bind_collectives(group);
  torsh::python::bind_messages(group);
}

void bind_arrays(nb::module_& m) {
  nb::class_<SharedArrays>(m, "SharedArrays")
      .def("__init__",
           [](SharedArrays* self, int file, std::size_t offset, std::size_t stride, std::size_t kept, int rank,
              const std::vector<int>& pids, std::uint64_t number) {
             if (rank < 0 || static_cast<std::size_t>(rank) >= pids.size()) throw nb::value_error("rank is none of the pids");
             new (self) SharedArrays({file, offset, stride, kept, rank, pids, number});
           }, "file"_a, "offset"_a, "stride"_a, "kept"_a, "rank"_a, "pids"_a, "number"_a)
      .def_static("possible", &SharedArrays::possible)
      .def("begin", &SharedArrays::begin)
      .def("end", &SharedArrays::end);
}

}  // namespace

NB_MODULE(_native, m) {
  if (!torsh::python::import_numpy()) throw nb::python_error();
  nb::set_leak_warnings(false);  // a group that lives until the process ends is no leak
  m.attr("MAX_LOCAL_RANKS") = torsh::shm::max_ranks;
  m.attr("ANY_SOURCE") = torsh::any_source;
  m.def("least_block", &torsh::shm::least_block);
  m.def("is_reducible", [](int dtype, int op) { return torsh::is_reducible(dtype_of(dtype), op_of(op)); });
  m.def("reduce", &reduce);
  m.attr("NUMBERING") =
#include "bindings/numbering.inc"  // of the enumerations that it is built with
      ;
  m.def("vector_level", [] { return static_cast<int>(torsh::kernels::own_level()); });

  nb::class_<Typed>(m, "Typed")
      .def("__init__",
           [](Typed* self, nb::object buffer, int dtype, nb::object name) {
             if (!name.is_none() && !PyUnicode_Check(name.ptr())) throw nb::type_error("the name must be a str");
             new (self) Typed{std::move(buffer), dtype_of(dtype), std::move(name)};
           }, "buffer"_a, "dtype"_a, "name"_a.none() = nb::none());
  bind_tuning(m);
  nb::class_<Pending>(m, "Pending")
      .def("wait", &Pending::wait, "timeout"_a.none())
      .def("done", &Pending::done)
      .def("check", &Pending::check)
      .def("source", &Pending::source)
      .def("message", &Pending::message)
      .def("when_over", &Pending::when_over);
  nb::class_<Completions>(m, "Completions").def(nb::init<>()).def("wait", &Completions::wait);
  torsh::python::bind_segments(m);
  torsh::python::bind_slots(m);
  torsh::python::bind_recorder(m);
  bind_group(m);
  bind_arrays(m);
  torsh::python::bind_rpc(m);
}
