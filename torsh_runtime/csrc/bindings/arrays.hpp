// Ordinary numpy arrays in memory that the other ranks of the node have mapped.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "transport/shm/shared_heap.hpp"

namespace torsh::python {

namespace nb = nanobind;

// During its lifetime numpy allocates new large arrays of this thread's context in the shared heap (NEP 49).
class SharedArrays {
 public:
  // Throws std::system_error without memory for it.
  explicit SharedArrays(const shm::SharedHeapSetup& setup);
  // Whether there are none yet and numpy has its own allocator here; any other is its user's choice.
  static bool possible();

  void begin();
  // Stops placing new arrays there. Existing arrays stay.
  void end();

 private:
  std::shared_ptr<shm::SharedHeap> heap_;
  nb::object handler_;
};

}  // namespace torsh::python
