// A group as Python sees it: arguments are checked, the GIL is released, failures become Python
// errors. Collectives return None when they are over, and with `async_op` a Job.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "bindings/gil.hpp"
#include "bindings/pending.hpp"
#include "bindings/view.hpp"
#include "common/progress.hpp"
#include "group/group.hpp"
#include "group/operations.hpp"

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
  // `stage` as in View; `failure(*facts) -> exception`.
  Rank(GroupSetup setup, nb::handle record, nb::object stage, nb::object failure);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // The ranks' first meeting: returns when all are there. timeout in seconds.
  void meet(double timeout, std::optional<bool> known_reach);
  // Whether those of this node can read each other's memory, once they have met.
  bool has_reach() const { return group_->channel().reach().allowed(); }
  bool failed() const { return group_->failed(); }

  nb::object all_reduce(nb::handle array, nb::handle op, double timeout, bool async_op);
  // What it returns of each operation that it has made of them.
  nb::list all_reduce_list(nb::handle arrays, nb::handle op, double timeout, bool async_op);
  nb::object reduce(nb::handle array, int root, nb::handle op, double timeout, bool async_op);
  nb::object broadcast(nb::handle array, int root, double timeout, bool async_op);
  nb::object all_gather(nb::handle output, nb::handle array, double timeout, bool async_op);
  nb::object all_gather_list(nb::handle outputs, nb::handle array, double timeout, bool async_op);
  nb::object gather(nb::handle outputs, nb::handle array, int root, double timeout, bool async_op);
  nb::object scatter(nb::handle array, nb::handle inputs, int root, double timeout, bool async_op);
  nb::object reduce_scatter(nb::handle output, nb::handle array, nb::handle op, double timeout, bool async_op);
  nb::object reduce_scatter_list(nb::handle output, nb::handle inputs, nb::handle op, double timeout, bool async_op);
  nb::object all_to_all(nb::handle output, nb::handle array, double timeout, bool async_op);
  nb::object all_to_all_list(nb::handle outputs, nb::handle inputs, double timeout, bool async_op);
  nb::object barrier(double timeout, bool async_op);
  // Both return a Pending, which has been waited for unless async_op.
  nb::object send(nb::handle array, int dst, std::uint64_t tag, double timeout, bool async_op);
  nb::object recv(nb::handle array, int src, std::optional<std::uint64_t> tag, double timeout, bool async_op);
  // The same of bytes that are an object's, which the user's messages never meet, and of whatever size.
  nb::object send_object(nb::handle bytes, int dst, std::uint64_t tag, double timeout, bool async_op);
  nb::object take_object(int src, std::uint64_t tag, double timeout, bool async_op);
  // A Pending of a message of the user's that could be received: when there is one, or None if there is
  // none now.
  nb::object probe(int src, std::optional<std::uint64_t> tag, double timeout, bool only_now);

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

  Group& group() { return *group_; }
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
  template <class Operation, class... Views>
  nb::object perform(const Call& call, Operation operation, double timeout, bool async_op, Views&&... views);
  nb::object reduce_run(std::vector<View> run, nb::handle op, double timeout, bool async_op);
  nb::object begin_send(nb::handle array, int dst, Purpose purpose, std::uint64_t tag, double timeout, bool async_op);
  template <class... Views>
  nb::object message(TransferPtr transfer, double timeout, bool async_op, Views&&... views);
  void check_source(int src) const;
  void check_rank(const char* name, int rank) const;
  void check_parts(const View& all, const View& part) const;
  void check_own(const char* name, const std::vector<View>& list, int root, const View& own) const;
  void check_list(const char* name, const std::vector<View>& list, Elements dtype) const;

  const Record record_;
  const nb::object stage_, failure_;
  std::unique_ptr<Group> group_;
  // Looked through now and then for what is over.
  std::deque<std::pair<std::function<bool()>, std::shared_ptr<Kept>>> under_way_;
};

}  // namespace torsh::python
