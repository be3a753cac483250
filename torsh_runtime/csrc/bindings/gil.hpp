// Releases and takes the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <type_traits>

namespace torsh::python {

// Takes the GIL through one of Python's functions. During the interpreter's shutdown, those end each thread but the
// main one (pthread_exit, before Python 3.14), in the middle of C++ code, which would crash. Such a thread stays here
// until the process has ended.
template <typename Take>
[[gnu::noinline]] auto take_gil(Take take) {
  struct Guard {
    bool is_left = true;
    ~Guard() {
      while (is_left) pause();
    }
  } guard;
  if constexpr (std::is_void_v<decltype(take())>) {
    take();
    guard.is_left = false;
  } else {
    const auto state = take();
    guard.is_left = false;
    return state;
  }
}

// Releases the GIL for its lifetime.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL for its lifetime, on any thread.
class WithGil {
 public:
  WithGil() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace torsh::python
