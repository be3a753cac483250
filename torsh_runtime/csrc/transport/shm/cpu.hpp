// Which CPU a thread runs on, and getting off it.
#pragma once

#include <sched.h>

#include <vector>

namespace torsh::shm {

int current_cpu();

// The CPUs that this thread may run on, and their number.
int allowed_cpus(cpu_set_t& set);

// Moves this thread to an allowed CPU that is none of these, if there is one; afterwards it may run
// everywhere it could before.
void leave_cpus(const std::vector<int>& occupied);

}  // namespace torsh::shm
