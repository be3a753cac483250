// A group as Python sees it: arguments are checked, the GIL is released, failures become Python errors.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "bindings/gil.hpp"
#include "bindings/pending.hpp"
#include "common/progress.hpp"
#include "common/recorder.hpp"
#include "group/group.hpp"

namespace torsh::python {

// A writable Python buffer for notes, kept alive; none for None.
template <typename Noted>
class Notes {
 public:
  explicit Notes(nb::handle object) {
    if (object.is_none()) return;
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const bool aligned = reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(Noted) == 0;
    if (aligned && static_cast<std::size_t>(view_.len) >= sizeof(Noted)) return;
    PyBuffer_Release(&view_);
    throw nb::value_error("the record of a status page, or a recording, is too small or not aligned");
  }
  ~Notes() { PyBuffer_Release(&view_); }  // does nothing for none
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

  Noted* get() const { return static_cast<Noted*>(view_.buf); }

 private:
  Py_buffer view_{};
};

// The places where a group's operations are noted: the last one, and all of them; `place` is the group's index among
// the tallies.
struct Noting {
  nb::handle record, recording;
  std::size_t place = 0;
};

class Rank {
 public:
  // `stage` as in View; `failure(*facts) -> exception`; what collectives return: `complete` when they are
  // over, else `begun(Pending)`.
  Rank(GroupSetup setup, const Noting& noting, nb::object stage, nb::object failure, nb::object complete, nb::object begun);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The ranks' first operation; returns when all are there. timeout in seconds.
  void handshake(double timeout, std::optional<bool> known_cross_memory);
  // Whether the ranks of this node can read each other's memory, known after the handshake.
  bool has_cross_memory() const { return group_->channel().cross_memory().allowed(); }
  std::size_t held_bytes() const { return group_->held_bytes(); }
  bool failed() const { return group_->failed(); }

  // See Group.
  bool all_come();
  // Calls `call` on the group's thread, in the order in which operations were begun; operations that it makes run at
  // once. It must not raise. Returns a Pending.
  nb::object run(nb::object call);

  // `memory`: a writable buffer of `stride` bytes for each rank of the node, of which `bytes` count.
  void add_region(nb::handle memory, std::size_t stride, std::size_t bytes, double timeout);

  void abort();
  void close();
  // Keeps objects alive that a running operation uses after Python has released them.
  void keep(std::function<bool()> over, std::shared_ptr<Kept> kept);

  // Raises a ValueError, with the argument's name, unless there is such a rank.
  void check_rank(const char* name, int rank) const;

  Group& group() { return *group_; }
  const nb::object& stage() const { return stage_; }
  const nb::object& complete() const { return complete_; }
  nb::object begun(Pending pending) const { return begun_(std::move(pending)); }
  // Runs the body without the GIL and turns what it throws into Python errors.
  template <class Body>
  auto guarded(Body body) {
    try {
      const WithoutGil unlocked;
      return body();
    } catch (const Failure& failure) {
      raise(failure);
    } catch (const Interrupted&) {
      throw nb::python_error();  // PyErr_CheckSignals has set what the signal's handler raised
    }
  }

 private:
  [[noreturn]] void raise(const Failure& failure) const;

  const Notes<Progress> record_;
  const Notes<Recording> recording_;
  const nb::object stage_, failure_, complete_, begun_;
  std::unique_ptr<Group> group_;
  // Checked regularly for operations that are over.
  std::deque<std::pair<std::function<bool()>, std::shared_ptr<Kept>>> under_way_;
};

// The operations of a Rank: methods of the class in Python.
void bind_collectives(nb::class_<Rank>& group);
void bind_messages(nb::class_<Rank>& group);

}  // namespace torsh::python
