// The parts of an operation's ranks, as Python gives them.
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
  // Elements of a rank's part; 0 if there is none.
  std::uint64_t count(int rank, int ranks) const {
    if (whole_) return whole_->count() / static_cast<std::uint64_t>(ranks);
    return static_cast<std::size_t>(rank) < list_.size() ? list_[static_cast<std::size_t>(rank)].count() : 0;
  }
  // Raises a ValueError, with the argument's name, unless there is a part of this dtype for each rank, of which
  // that of `rank` has so many elements.
  void check(const char* name, Elements dtype, std::uint64_t count, int rank, int ranks) const {
    const bool fits = whole_ && whole_->dtype() == dtype && whole_->count() == count * static_cast<std::uint64_t>(ranks);
    if (!fits) check_each(name, dtype, count, rank, ranks);
  }

  Parts parts() const { return whole_ ? Parts(whole_->piece()) : Parts(pieces(list_)); }
  // What all ranks must agree on where the parts are a list: their sizes stand for the shape.
  Call call(OpKind kind, ReduceOp op = ReduceOp::sum) const;
  void finish();

 private:
  void check_each(const char* name, Elements dtype, std::uint64_t count, int rank, int ranks) const;

  std::optional<View> whole_;
  std::vector<View> list_;
};

}  // namespace torsh::python
