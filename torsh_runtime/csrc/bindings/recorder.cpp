#include "bindings/recorder.hpp"

#include <nanobind/stl/optional.h>

#include <optional>

#include "bindings/rank.hpp"
#include "common/recorder.hpp"
#include "transport/forks.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace torsh::python {
namespace {

// A group's operations of a library of which only Python knows. Any thread. Forks note nothing: the recording is
// their parent's.
class LibraryRecorder {
 public:
  LibraryRecorder(nb::handle recording, std::size_t place, std::uint32_t group, std::uint32_t ranks, std::uint8_t path)
      : recording_(recording), recorder_(recording_.get(), place, group, ranks, false), path_(static_cast<Path>(path)) {}

  bool is_fork() const { return forks_ != fork_count(); }
  const Recorder& recorder() const { return recorder_; }
  Path path() const { return path_; }

 private:
  const Notes<Recording> recording_;
  const Recorder recorder_;
  const Path path_;
  const unsigned forks_ = fork_count();
};

// One of them, which is over at the latest when Python lets it go.
class LibraryOperation {
 public:
  // `kind`, `dtype` and `op` are numbers of RECORDED, DTYPES and REDUCTIONS.
  LibraryOperation(nb::object recorder, std::uint8_t kind, std::uint8_t dtype, std::uint8_t op, std::int32_t root,
                   std::uint64_t count, std::uint64_t bytes, std::uint64_t sequence, bool in_background)
      : owner_(std::move(recorder)), recorder_(nb::cast<LibraryRecorder&>(owner_)), call_(kind | dtype << 8u | op << 16u), count_(count), bytes_(bytes) {
    if (recorder_.is_fork()) return;
    recorded_.enter(recorder_.recorder(), {summary(root), count, bytes, sequence, recorder_.path(), in_background});
  }
  ~LibraryOperation() { leave(true); }
  LibraryOperation(const LibraryOperation&) = delete;
  LibraryOperation& operator=(const LibraryOperation&) = delete;

  // Of a message from whichever rank, where it came from, and its number in that direction.
  void tell(std::int32_t root, std::uint64_t sequence) {
    if (!recorder_.is_fork()) recorded_.tell(summary(root), count_, bytes_, sequence);
  }
  void cancel() {
    if (!recorder_.is_fork()) recorded_.cancel();
  }
  void leave(bool has_failed) {
    if (!recorder_.is_fork()) recorded_.leave(has_failed);
  }
  // Of a wait for it.
  std::uint64_t entry() const { return recorded_.number(); }

 private:
  std::uint64_t summary(std::int32_t root) const {
    return call_ | static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32;
  }

  const nb::object owner_;  // the next one as Python knows it, so that it stays
  LibraryRecorder& recorder_;
  Recorded recorded_;
  const std::uint64_t call_, count_, bytes_;
};

// Of notes (torsh_runtime/monitoring/notes.py), one at a time: whoever writes one holds the GIL.
class NoteWriter {
 public:
  explicit NoteWriter(nb::handle recording) : recording_(recording) {}

  void write(std::uint64_t what, double value) {
    Recording& recording = *recording_.get();
    const std::uint64_t number = recording.notes_begun.load(std::memory_order_relaxed), mark = (number + 1) << 2;
    Word* const note = recording.notes[number % Recording::notes_held];
    note[0].store(mark | Recording::writing, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    note[1].store(what, std::memory_order_relaxed);
    note[2].store(nanoseconds(), std::memory_order_relaxed);
    note[3].store(std::bit_cast<std::uint64_t>(value), std::memory_order_relaxed);
    note[0].store(mark | Recording::left, std::memory_order_release);
    recording.notes_begun.store(number + 1, std::memory_order_release);
  }

 private:
  const Notes<Recording> recording_;
};

}  // namespace

void bind_recorder(nb::module_& m) {
  m.attr("RECORDING_BYTES") = sizeof(Recording);
  m.def("open_recording", [](nb::handle memory) { Notes<Recording>(memory).get()->open(); });
  nb::class_<NoteWriter>(m, "NoteWriter").def(nb::init<nb::handle>()).def("write", &NoteWriter::write);
  nb::class_<LibraryRecorder>(m, "LibraryRecorder")
      .def(nb::init<nb::handle, std::size_t, std::uint32_t, std::uint32_t, std::uint8_t>(), "recording"_a, "place"_a, "group"_a,
           "ranks"_a, "path"_a);
  nb::class_<LibraryOperation>(m, "LibraryOperation")
      .def(nb::init<nb::object, std::uint8_t, std::uint8_t, std::uint8_t, std::int32_t, std::uint64_t, std::uint64_t, std::uint64_t, bool>(),
           "recorder"_a, "kind"_a, "dtype"_a, "op"_a, "root"_a, "count"_a, "bytes"_a, "sequence"_a, "in_background"_a)
      .def("tell", &LibraryOperation::tell)
      .def("cancel", &LibraryOperation::cancel)
      .def("leave", &LibraryOperation::leave)
      .def_prop_ro("entry", &LibraryOperation::entry);
}

}  // namespace torsh::python
