#include "transport/shm/cpu.hpp"

#include <sched.h>

#include "transport/small_files.hpp"

namespace torsh::shm {

int current_cpu() { return sched_getcpu(); }

int allowed_cpus(cpu_set_t& set) {
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_SET(current_cpu(), &set);
  return CPU_COUNT(&set);
}

bool threads_have_cpus(int cpus) {
  const auto loads = read_file("/proc/loadavg");  // three averages, then "running/all"
  if (!loads) return false;
  const auto found = words(*loads);
  const auto running = found.size() > 3 ? leading<int>(found[3]) : std::nullopt;
  return running && *running <= cpus;
}

void leave_cpus(const std::vector<int>& occupied) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t vacant = allowed;
  for (const int cpu : occupied) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &vacant);
  }
  if (CPU_COUNT(&vacant) == 0 || sched_setaffinity(0, sizeof vacant, &vacant) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace torsh::shm
