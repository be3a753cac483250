// Letting go of the GIL.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace torsh::python {

// Without the GIL for as long as it lives. A thread that wants it back when the interpreter is being
// taken down would be ended in the middle of C++ code, which ends the process badly: it stays here.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    while (is_finalizing()) pause();
    PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  bool is_finalizing() const {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing() && !is_main();
#else
    return _Py_IsFinalizing() && !is_main();
#endif
  }
  static bool is_main() { return gettid() == getpid(); }

  PyThreadState* state_;
};

}  // namespace torsh::python
