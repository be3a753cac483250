#include "bindings/segments.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <optional>

#include "bindings/gil.hpp"
#include "bindings/signals.hpp"
#include "transport/shm/populate.hpp"
#include "transport/shm/segment.hpp"
#include "transport/shm/tuning.hpp"

namespace torsh::python {
namespace {

using shm::GroupFormation;
using shm::SegmentPool;
using shm::Tuning;
using shm::Decision;
using Memory = std::shared_ptr<std::byte>;
using namespace nb::literals;

std::size_t segment_bytes(int ranks, const Tuning& tuning) { return shm::Segment::bytes_for(ranks, shm::slot_bytes(tuning)); }

std::unique_ptr<GroupFormation> form_group(const std::shared_ptr<SegmentPool>& pool, nb::bytes name, std::vector<int> members, std::size_t bytes) {
  std::array<std::uint64_t, 2> digest{};
  if (name.size() != sizeof digest) throw nb::value_error("the name must be a digest of 16 bytes");
  std::memcpy(digest.data(), name.c_str(), sizeof digest);
  return std::make_unique<GroupFormation>(pool, digest, std::move(members), bytes);
}

// None while it is open.
std::optional<bool> wait(GroupFormation& self, double seconds) {
  const Decision decision = [&] {
    try {
      const WithoutGil unlocked;
      return self.wait(seconds, interrupted);
    } catch (const Interrupted&) {
      throw nb::python_error();
    }
  }();
  if (decision == Decision::open) return std::nullopt;
  return decision == Decision::here;
}

}  // namespace

void bind_segments(nb::module_& m) {
  m.def("segment_bytes", &segment_bytes);
  m.def("maps_lazily", &shm::maps_lazily);
  m.def("abandon", [](int file, int index, int ranks, int rank) { shm::Segment::abandon(file, index, ranks, rank); });
  m.def("abandon", [](const SegmentMemory& memory, int index, int ranks, int rank) {
    shm::Segment::abandon(memory.base.get(), index, ranks, rank);
  });
  nb::class_<SegmentMemory>(m, "SegmentMemory");
  m.def("map_segment", [](int file, std::size_t bytes) { return SegmentMemory{shm::map_segment(file, bytes)}; });
  nb::class_<SegmentPool>(m, "SegmentPool")
      .def(nb::new_([](int file, std::size_t offset, std::size_t stride, int rank, const std::vector<int>& pids) {
             if (rank < 0 || static_cast<std::size_t>(rank) >= pids.size()) throw nb::value_error("rank is none of the pids");
             return SegmentPool::make({file, offset, stride, rank, pids});
           }), "file"_a, "offset"_a, "stride"_a, "rank"_a, "pids"_a)
      .def("form_group", &form_group);
  nb::class_<GroupFormation>(m, "GroupFormation")
      .def("wait", &wait)
      .def("missing", &GroupFormation::missing)
      .def("ended", &GroupFormation::ended)
      .def("take", [](GroupFormation& self) -> std::optional<SegmentMemory> {
        Memory memory = self.take();
        if (!memory) return std::nullopt;
        return SegmentMemory{std::move(memory)};
      })
      .def("leave", &GroupFormation::leave);
}

}  // namespace torsh::python
