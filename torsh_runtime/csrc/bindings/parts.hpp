// What an operation has for each rank, as Python gives it.
#pragma once

#include <optional>
#include <vector>

#include "bindings/view.hpp"
#include "group/operations.hpp"

namespace torsh::python {

// An array in as many equal parts as there are ranks; or a list (or tuple) of arrays, one for each rank, of
// any sizes. None is an empty list. As View it borrows.
class PartViews {
 public:
  PartViews(nb::handle given, bool writable, const nb::object& stage);
  explicit PartViews(std::vector<View> list) : list_(std::move(list)) {}

  const std::optional<View>& whole() const { return whole_; }
  Elements dtype() const;
  // Elements of a rank's part.
  std::uint64_t count(int rank, int ranks) const;
  // Raises a ValueError, with the argument's name, unless there is a part of this dtype for each rank.
  void check(const char* name, Elements dtype, int ranks) const;

  Parts parts() const { return whole_ ? Parts(whole_->piece()) : Parts(pieces(list_)); }
  // What all ranks must agree on where the parts are a list: their sizes stand for the shape.
  Call call(OpKind kind, ReduceOp op = ReduceOp::sum) const;
  void finish();

 private:
  std::optional<View> whole_;
  std::vector<View> list_;
};

}  // namespace torsh::python
