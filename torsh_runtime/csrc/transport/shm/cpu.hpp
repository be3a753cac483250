// Which CPU a thread runs on, and getting off it.
#pragma once

#include <sched.h>

#include <vector>

namespace torsh::shm {

int current_cpu();

// The CPUs that this thread may run on, and their number.
int allowed_cpus(cpu_set_t& set);

// Whether all threads of this machine that want to run now, those of other users too, would have one of so many
// CPUs. False where that is not known.
bool threads_have_cpus(int cpus);

// Moves this thread to an allowed CPU that is none of these, if there is one; afterwards it may run
// everywhere it could before.
void leave_cpus(const std::vector<int>& occupied);

}  // namespace torsh::shm
