#include "transport/shm/tracer.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include "transport/process_stat.hpp"

namespace torsh::shm {

int find_keeper() {
  int pid = getppid();
  while (pid > 0) {
    const auto found = read_stat(pid);
    if (!found) return 0;
    if (found->name == "torsh-keeper") return pid;
    pid = found->parent;
  }
  return 0;
}

void admit_siblings() {
  if (const int keeper = find_keeper()) prctl(PR_SET_PTRACER, keeper, 0, 0, 0);
}

}  // namespace torsh::shm
