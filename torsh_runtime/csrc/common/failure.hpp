// Why a collective did not complete. The bindings turn it into the Python error of that kind.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "common/types.hpp"

namespace torsh {

struct Failure : std::exception {
  FailureKind kind = FailureKind::none;
  int rank = -1;  // the rank at fault: lost, aborting or disagreeing
  int reporter = -1;  // the rank that found it
  OpKind op{};  // the reporter's operation
  std::uint64_t sequence = 0;
  double seconds = 0;   // the timeout that passed
  std::vector<int> missing;
  Call own{}, other{};  // in a mismatch: the reporter's call and the culprit's

  const char* what() const noexcept override { return "collective failed"; }
};

// A failure that concerns only the caller.
inline Failure bare(FailureKind kind, double seconds = 0) {
  Failure found;
  found.kind = kind;
  found.seconds = seconds;
  return found;
}

// The caller's interrupt hook asked to stop; the hook's own error says why.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

}  // namespace torsh
