#include "transport/shm/process.hpp"

#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "transport/process_stat.hpp"

namespace torsh::shm {
namespace {

// Never destroyed: groups may outlive statics.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Process>> processes;
};

// The sum of the thread IDs of a process, if all its threads are exiting; otherwise, or if unknown, 0.
std::uint64_t exiting_threads(const std::string& process) {
  const std::string tasks = process + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(("/proc/" + tasks).c_str()), &closedir);
  if (!directory) return 0;
  std::uint64_t sum = 0;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    const auto thread = read_stat(tasks + "/" + entry->d_name);
    if (!thread || !thread->exiting) return 0;
    sum += std::strtoull(entry->d_name, nullptr, 10);
  }
  return sum;
}

}  // namespace

// The PID of an ended process may have been reused.
std::shared_ptr<Process> Process::find(int pid) {
  static Registry& registry = *new Registry;
  const std::lock_guard<std::mutex> alone(registry.mutex);
  std::erase_if(registry.processes, [](const auto& each) { return each.second.expired(); });
  std::shared_ptr<Process> known = registry.processes[pid].lock();
  if (known && !known->has_ended()) return known;
  known = open(pid);
  registry.processes[pid] = known;
  return known;
}

std::shared_ptr<Process> Process::open(int pid) {
  Descriptor opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (opened.number() >= 0) return std::shared_ptr<Process>(new Process(pid, std::move(opened)));
  if (errno == ESRCH) return nullptr;
  throw std::system_error(errno, std::generic_category(), errno == ENOSYS ? "pidfd_open needs Linux 5.3" : "pidfd_open");
}

bool Process::has_ended() const {
  if (was_ending()) return true;
  pollfd entry{descriptor(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// Looks at the threads twice, as one may have started another between being listed and exiting. If the PID belongs to
// another process by now, this one has ended.
bool Process::is_ending() {
  if (was_ending()) return true;
  const std::string process = std::to_string(pid_);
  const auto leader = read_stat(pid_);
  const std::uint64_t threads = leader && leader->exiting ? exiting_threads(process) : 0;
  const bool found = threads != 0 && exiting_threads(process) == threads;
  if (found) ending_.store(true, std::memory_order_release);
  return found;
}

}  // namespace torsh::shm
