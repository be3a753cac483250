// Threads of this library's own.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace torsh {

// A thread that takes no signals: they are for the program's own. Throws std::system_error.
template <class Body>
std::thread start_thread(Body body) {
  class Blocked {
   public:
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_;
  };
  const Blocked inherited;
  return std::thread(std::move(body));
}

}  // namespace torsh
