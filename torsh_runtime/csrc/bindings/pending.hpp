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

  // Waits up to `timeout` seconds (none: without limit) and returns whether it is over. Raises its error.
  bool wait(std::optional<double> timeout);
  // Whether it is over, well or not.
  bool done();
  // Completes a message though no thread waits for it.
  void go_on();
  // Raises its error, if it is over and failed.
  void check();
  // The rank that a message came from; -1 for other operations, and before it has come.
  int source();
  // Adds the number to the completions once it is over.
  void when_over(std::shared_ptr<Completions> completions, std::uint64_t number);
  // For a message that has come or was found: (source, tag, bytes, content); the content is an array of bytes if the
  // message was taken, else None. None for other operations, and before.
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
