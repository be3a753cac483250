// A group as Python sees it: arguments are checked, the GIL is released, failures become Python errors.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "bindings/gil.hpp"
#include "bindings/pending.hpp"
#include "common/progress.hpp"
#include "group/group.hpp"

namespace torsh::python {

// A record of the worker's status page, kept from going away; none of None.
class Record {
 public:
  explicit Record(nb::handle object);
  ~Record() { PyBuffer_Release(&view_); }  // does nothing for none
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  Progress* progress() const { return static_cast<Progress*>(view_.buf); }

 private:
  Py_buffer view_{};
};

class Rank {
 public:
  // `stage` as in View; `failure(*facts) -> exception`; what collectives return: `complete` when they are
  // over, else `begun(Pending)`.
  Rank(GroupSetup setup, nb::handle record, nb::object stage, nb::object failure, nb::object complete, nb::object begun);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The ranks' first meeting: returns when all are there. timeout in seconds.
  void meet(double timeout, std::optional<bool> known_reach);
  // Whether those of this node can read each other's memory, once they have met.
  bool has_reach() const { return group_->channel().reach().allowed(); }
  std::size_t held_bytes() const { return group_->held_bytes(); }
  bool failed() const { return group_->failed(); }

  // As Group has it.
  bool all_come();
  // Calls it on the group's thread, in the order of the operations that were begun: those that it makes
  // are carried out at once. It must not raise. A Pending.
  nb::object run(nb::object call);

  // `memory`: a writable buffer of `stride` bytes for each rank of the node, of which `bytes` count.
  void add_region(nb::handle memory, std::size_t stride, std::size_t bytes, double timeout);

  void abort();
  void close();
  // Keeps what an operation under way holds on to, of which Python has let go.
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

  const Record record_;
  const nb::object stage_, failure_, complete_, begun_;
  std::unique_ptr<Group> group_;
  // Looked through now and then for what is over.
  std::deque<std::pair<std::function<bool()>, std::shared_ptr<Kept>>> under_way_;
};

// The operations of a Rank: methods of the class in Python.
void bind_collectives(nb::class_<Rank>& group);
void bind_messages(nb::class_<Rank>& group);

}  // namespace torsh::python
