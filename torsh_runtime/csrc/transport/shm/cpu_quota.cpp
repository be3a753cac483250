#include "transport/shm/cpu_quota.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "common/clock.hpp"
#include "transport/small_files.hpp"

namespace torsh::shm {
namespace {

// A control group of this process: where its hierarchy is mounted, and its name below that.
struct Cgroup {
  std::string mount, name;
  bool is_second_version;
};

bool has_word(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> parts = split(list, ',');
  return std::find(parts.begin(), parts.end(), word) != parts.end();
}

std::string text_of(const std::string& path) { return read_file(path).value_or(""); }

// Where the hierarchy is mounted, and which of its groups that shows; "" and "" if it is not.
std::pair<std::string, std::string> find_mount(const std::string& root, bool is_second_version) {
  const std::string mounts = text_of(root + "/proc/self/mountinfo");
  for (const std::string_view line : split(mounts, '\n')) {
    const std::size_t middle = line.find(" - ");
    if (middle == std::string_view::npos) continue;
    const std::vector<std::string_view> fields = words(line.substr(0, middle)), more = words(line.substr(middle + 3));
    if (fields.size() < 5 || more.empty()) continue;
    const std::string_view kind = more[0], options = more.back();
    const bool fits = is_second_version ? kind == "cgroup2" : kind == "cgroup" && has_word(options, "cpu");
    if (fits) return {std::string(fields[4]), std::string(fields[3])};
  }
  return {};
}

std::vector<Cgroup> find_cgroups(const std::string& root) {
  std::vector<Cgroup> found;
  const std::string cgroups = text_of(root + "/proc/self/cgroup");
  for (const std::string_view line : split(cgroups, '\n')) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !has_word(controllers, "cpu")) continue;
    const auto [point, top] = find_mount(root, controllers.empty());
    if (point.empty()) continue;
    std::string name(line.substr(second + 1));
    const bool is_below = top == "/" || (name + "/").compare(0, top.size() + 1, top + "/") == 0;
    name = is_below ? name.substr(top == "/" ? 0 : top.size()) : "";  // a container sees no more than its own
    if (name.find("..") != std::string::npos) name.clear();
    found.push_back({root + point, name == "/" ? "" : name, controllers.empty()});
  }
  return found;
}

double number_in(std::string_view text) { return static_cast<double>(leading<long long>(text).value_or(0)); }

// Processors' worth of time; 0 is no limit.
double read_limit(const std::string& folder, bool is_second_version) {
  std::string quota, period;
  if (is_second_version) {
    const std::string both = text_of(folder + "/cpu.max");  // "max" is no number
    const std::vector<std::string_view> parts = words(both);
    if (parts.size() == 2) quota = parts[0], period = parts[1];
  } else {
    quota = text_of(folder + "/cpu.cfs_quota_us");  // -1 is no limit
    period = text_of(folder + "/cpu.cfs_period_us");
  }
  return number_in(quota) > 0 && number_in(period) > 0 ? number_in(quota) / number_in(period) : 0;
}

std::uint64_t number_of(const std::string& folder) {
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0) return 1;
  return (static_cast<std::uint64_t>(facts.st_dev) << 48 ^ facts.st_ino) | std::uint64_t{1} << 63;
}

}  // namespace

std::optional<CpuQuota> find_cpu_quota(const std::string& root) {
  std::optional<CpuQuota> tightest;
  for (const Cgroup& cgroup : find_cgroups(root)) {
    for (std::string name = cgroup.name;; name.erase(name.rfind('/'))) {
      const std::string folder = cgroup.mount + name;
      const double cpus = read_limit(folder, cgroup.is_second_version);
      if (cpus > 0 && (!tightest || cpus <= tightest->cpus)) tightest = {cpus, number_of(folder)};
      if (name.rfind('/') == std::string::npos) break;
    }
  }
  return tightest;
}

std::optional<CpuQuota> recent_cpu_quota() {
  struct Reading {
    std::mutex mutex;
    std::optional<CpuQuota> quota;
    double valid_until = 0;
  };
  static Reading& last = *new Reading;  // never destroyed: groups may outlive statics
  const std::unique_lock<std::mutex> alone(last.mutex, std::try_to_lock);
  if (!alone) return find_cpu_quota("");  // in a fork it may stay locked for ever
  if (now() >= last.valid_until) {
    last.quota = find_cpu_quota("");
    last.valid_until = now() + 1;
  }
  return last.quota;
}

}  // namespace torsh::shm
