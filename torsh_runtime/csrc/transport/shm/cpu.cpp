#include "transport/shm/cpu.hpp"

#include <sched.h>

namespace torsh::shm {

std::uint16_t current_cpu() { return static_cast<std::uint16_t>(sched_getcpu()); }

int allowed_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void leave_cpus(const std::vector<std::uint16_t>& occupied) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cpu_set_t vacant = allowed;
  for (const std::uint16_t cpu : occupied) {
    if (cpu < CPU_SETSIZE) CPU_CLR(cpu, &vacant);
  }
  if (CPU_COUNT(&vacant) == 0 || sched_setaffinity(0, sizeof vacant, &vacant) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace torsh::shm
