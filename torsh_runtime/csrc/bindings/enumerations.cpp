#include "bindings/enumerations.hpp"

#include <initializer_list>
#include <utility>

#include "collectives/across/across.hpp"
#include "common/failure.hpp"
#include "common/types.hpp"

namespace nb = nanobind;

namespace torsh::python {
namespace {

template <typename Kind>
nb::dict numbers(std::initializer_list<std::pair<const char*, Kind>> names) {
  nb::dict found;
  for (const auto& [name, value] : names) found[name] = static_cast<int>(value);
  return found;
}

nb::dict operations() {
  using enum OpKind;
  return numbers<OpKind>({{"all_reduce", all_reduce},
                          {"reduce", reduce},
                          {"broadcast", broadcast},
                          {"all_gather", all_gather},
                          {"gather", gather},
                          {"scatter", scatter},
                          {"reduce_scatter", reduce_scatter},
                          {"all_to_all", all_to_all},
                          {"barrier", barrier},
                          {"send", send},
                          {"recv", recv}});
}

nb::dict dtypes() {
  using enum DType;
  return numbers<DType>({{"bool", boolean},
                         {"int8", int8},
                         {"int16", int16},
                         {"int32", int32},
                         {"int64", int64},
                         {"uint8", uint8},
                         {"uint16", uint16},
                         {"uint32", uint32},
                         {"uint64", uint64},
                         {"float16", float16},
                         {"bfloat16", bfloat16},
                         {"float32", float32},
                         {"float64", float64},
                         {"complex64", complex64},
                         {"complex128", complex128}});
}

nb::dict reductions() {
  using enum ReduceOp;
  return numbers<ReduceOp>({{"SUM", sum},
                            {"AVG", avg},
                            {"PRODUCT", product},
                            {"MIN", min},
                            {"MAX", max},
                            {"BAND", band},
                            {"BOR", bor},
                            {"BXOR", bxor},
                            {"PREMUL_SUM", premul_sum}});
}

nb::dict failures() {
  using enum FailureKind;
  return numbers<FailureKind>({{"PEER_LOST", peer_lost},
                               {"PEER_LEFT", peer_left},
                               {"TIMEOUT", timeout},
                               {"MISMATCH", mismatch},
                               {"ABORTED", aborted},
                               {"CLOSED", closed},
                               {"BUSY", busy},
                               {"NESTED", nested},
                               {"FORKED", forked}});
}

nb::dict strategies() {
  using enum across::Strategy;
  return numbers<across::Strategy>(
      {{"adaptive", adaptive}, {"standard", standard}, {"ring", ring}, {"tree", tree}, {"hierarchical", hierarchical}});
}

}  // namespace

nb::dict enumerations() {
  nb::dict found;
  found["operations"] = operations();
  found["dtypes"] = dtypes();
  found["reductions"] = reductions();
  found["failures"] = failures();
  found["strategies"] = strategies();
  return found;
}

}  // namespace torsh::python
