// Letting go of the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace torsh::python {

// While the interpreter is being taken down, threads other than the main one do not get the GIL.
inline void wait_for_interpreter() {
  const auto is_finalizing = [] {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
  };
  while (is_finalizing() && gettid() != getpid()) pause();
}

// Without the GIL for as long as it lives. A thread that wants it back when the interpreter is being
// taken down would be ended in the middle of C++ code, which ends the process badly: it stays here.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    wait_for_interpreter();
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// With the GIL, on any thread.
class WithGil {
 public:
  WithGil() {
    wait_for_interpreter();
    state_ = PyGILState_Ensure();
  }
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace torsh::python
