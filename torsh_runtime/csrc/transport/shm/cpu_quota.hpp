// How much of its processors the system lets a process use (cgroups(7), versions 1 and 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torsh::shm {

struct CpuQuota {
  double cpus;          // processors' worth of time, of all processes of the group together
  std::uint64_t group;  // tells control groups apart, on one machine; not 0
};

// The tightest of the limits on this process; none if there is none, or it cannot be read. Files are
// looked for below `root`.
std::optional<CpuQuota> find_cpu_quota(const std::string& root);
// The same of this machine, as it was a second ago at most: it takes a dozen files to read. Any thread.
std::optional<CpuQuota> recent_cpu_quota();

}  // namespace torsh::shm
