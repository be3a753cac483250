#include "bindings/parts.hpp"

#include <algorithm>
#include <string>

namespace torsh::python {

PartViews::PartViews(nb::handle given, bool writable, const nb::object& stage) {
  if (given.is_none() || PyList_Check(given.ptr()) || PyTuple_Check(given.ptr())) {
    list_ = views(given, writable, stage);
  } else {
    whole_.emplace(given, writable, stage);
  }
}

Elements PartViews::dtype() const {
  if (whole_) return whole_->dtype();
  return list_.empty() ? Elements{DType::uint8, nullptr} : list_.front().dtype();
}

void PartViews::check_each(const char* name, Elements dtype, std::uint64_t count, int rank, int ranks) const {
  const auto refuse = [name](const char* why) { throw nb::value_error((std::string(name) + why).c_str()); };
  const auto alike = [dtype](const View& view) { return view.dtype() == dtype; };
  if (!whole_ && list_.size() != static_cast<std::size_t>(ranks)) refuse(" must hold one array for each rank");
  if (whole_ ? !alike(*whole_) : !std::all_of(list_.begin(), list_.end(), alike)) {
    throw nb::value_error("all arrays of a call must have the same dtype");
  }
  if (whole_) refuse(" must be of world_size times the size of a part");
  if (this->count(rank, ranks) != count) refuse("[rank] must be of the size of this rank's other array");
}

Call PartViews::call(OpKind kind, ReduceOp op) const {
  Call call{.kind = kind, .dtype = dtype(), .op = op, .root = Call::of_list};
  std::uint64_t mixed = 0;
  call.dims = static_cast<std::uint8_t>(std::min<std::size_t>(list_.size(), 255));
  for (std::size_t i = 0; i < list_.size(); ++i) {
    call.count += list_[i].count();
    mixed = mixed * 0x9E3779B97F4A7C15ull + list_[i].count();
    if (i < Call::max_dims - 1) call.shape[i] = list_[i].count();
  }
  call.shape.back() = mixed;
  return call;
}

void PartViews::finish() {
  if (whole_) whole_->finish();
  for (View& view : list_) view.finish();
}

}  // namespace torsh::python
