#include "transport/shm/cpu_cache.hpp"

#include <algorithm>

#include "transport/small_files.hpp"

namespace torsh::shm {
namespace {

int first_of(const cpu_set_t& cpus) {
  int cpu = 0;
  while (cpu < CPU_SETSIZE && !CPU_ISSET(cpu, &cpus)) ++cpu;
  return cpu;
}

// A list such as "0-7,64-71" (cpuset(7)); empty if it is none.
cpu_set_t parse_list(std::string_view text) {
  cpu_set_t found;
  CPU_ZERO(&found);
  for (const std::string_view part : split(text, ',')) {
    const std::vector<std::string_view> ends = split(part, '-');
    const std::optional<int> first = leading<int>(ends.front()), last = leading<int>(ends.back());
    if (!first || !last) break;
    for (int cpu = std::max(*first, 0); cpu <= *last && cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &found);
  }
  return found;
}

}  // namespace

std::uint32_t shared_cache(const cpu_set_t& cpus, const std::string& root) {
  const std::string caches = root + "/sys/devices/system/cpu/cpu" + std::to_string(first_of(cpus)) + "/cache/index";
  cpu_set_t widest;
  CPU_ZERO(&widest);
  for (int index = 0;; ++index) {  // the last level has the most processors
    const std::optional<std::string> list = read_file(caches + std::to_string(index) + "/shared_cpu_list");
    if (!list) break;
    const cpu_set_t sharers = parse_list(*list);
    if (CPU_COUNT(&sharers) > CPU_COUNT(&widest)) widest = sharers;
  }
  cpu_set_t common;
  CPU_AND(&common, &cpus, &widest);
  if (CPU_COUNT(&widest) == 0 || !CPU_EQUAL(&common, &cpus)) return 0;
  return static_cast<std::uint32_t>(first_of(widest)) + 1;
}

}  // namespace torsh::shm
