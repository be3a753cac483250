// Operations under way as Python sees them.
#pragma once

#include <exception>
#include <memory>
#include <optional>

#include <nanobind/nanobind.h>

#include "bindings/completions.hpp"
#include "bindings/kept.hpp"
#include "group/group.hpp"

namespace torsh::python {

namespace nb = nanobind;

class Rank;

// An operation that was begun. Needs the GIL, which its waits release.
class Pending {
 public:
  Pending(Rank& rank, JobPtr job, std::shared_ptr<Kept> kept);
  Pending(Rank& rank, TransferPtr transfer, std::shared_ptr<Kept> kept, double timeout);
  ~Pending();  // the buffers of what is still under way stay
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = delete;

  // Whether it was over within so many seconds (none: however long it takes). Raises what it ended
  // with.
  bool wait(std::optional<double> timeout);
  // Whether it is over, well or not.
  bool done();
  // Sees to it that a message gets done though nobody waits for it.
  void go_on();
  // Raises what it ended with, if it is over and ended badly.
  void check();
  // The rank a message came from; -1 of other operations, and before it has come.
  int source();
  // Adds the number to the completions once it is over.
  void when_over(std::shared_ptr<Completions> completions, std::uint64_t number);
  // Of a message that has come, or was found: (source, tag, bytes, content), the content as an array of
  // bytes if it was taken, else None. None of other operations, and before.
  nb::object message();

 private:
  bool is_over() const;
  bool wait_until(double until);
  void settle();

  Rank& rank_;
  nb::object owner_;  // rank_ as Python knows it, so that it stays
  JobPtr job_;
  TransferPtr transfer_;
  std::shared_ptr<Kept> kept_;
  nb::object content_ = nb::none();  // of a message that was taken
  bool settling_ = false;
  std::exception_ptr failure_;  // the Python error is made anew each time: it would keep its frames, and they this
  double timeout_ = 0, deadline_ = 0;
};

}  // namespace torsh::python
