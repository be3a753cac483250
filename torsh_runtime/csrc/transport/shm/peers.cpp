#include "transport/shm/peers.hpp"

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

#include "transport/process_stat.hpp"

namespace torsh::shm {
namespace {

using Process = std::shared_ptr<const Descriptor>;

bool has_ended(const Descriptor& process) {
  pollfd entry{process.number(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

// Null if there is no such process.
Process open_process(int pid) {
  Descriptor opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (opened.number() >= 0) return std::make_shared<const Descriptor>(std::move(opened));
  if (errno == ESRCH) return nullptr;
  throw std::system_error(errno, std::generic_category(), errno == ENOSYS ? "pidfd_open needs Linux 5.3" : "pidfd_open");
}

// The processes that groups of this one watch, by pid. Never destroyed: groups may outlive statics.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<const Descriptor>> processes;
};

// One that has ended may have left its number to another.
Process find_process(int pid) {
  static Registry& registry = *new Registry;
  const std::lock_guard<std::mutex> alone(registry.mutex);
  std::erase_if(registry.processes, [](const auto& each) { return each.second.expired(); });
  Process known = registry.processes[pid].lock();
  if (known && !has_ended(*known)) return known;
  known = open_process(pid);
  registry.processes[pid] = known;
  return known;
}

// Whether all threads of a process are on their way out. False if it cannot be told.
bool all_exit(const std::string& process) {
  const std::string tasks = process + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(("/proc/" + tasks).c_str()), &closedir);
  if (!directory) return false;
  bool any = false;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    const auto thread = read_stat(tasks + "/" + entry->d_name);
    if (!thread || !thread->exiting) return false;
    any = true;
  }
  return any;
}

}  // namespace

Peers::Peers(const std::vector<int>& pids) : pids_(pids) {
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] <= 0 || pids[rank] == getpid()) continue;
    if (const Process process = find_process(pids[rank])) {
      watched_.push_back(process);
      descriptors_.push_back({process->number(), POLLIN, 0});
      ranks_.push_back(static_cast<int>(rank));
    } else {
      dead_from_start_.push_back(static_cast<int>(rank));
    }
  }
}

bool Peers::has_ended(int rank) const {
  if (std::find(dead_from_start_.begin(), dead_from_start_.end(), rank) != dead_from_start_.end()) return true;
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return false;
  return torsh::shm::has_ended(*watched_[static_cast<std::size_t>(found - ranks_.begin())]);
}

// The threads are looked at twice, as one may have started another between being listed and ending.
bool Peers::is_ending(int rank) const {
  const std::string process = std::to_string(pids_[static_cast<std::size_t>(rank)]);
  const auto leader = read_stat(process);
  return leader && leader->exiting && all_exit(process) && all_exit(process);
}

bool Peers::is_stopped(int rank) const {
  const auto found = read_stat(pids_[static_cast<std::size_t>(rank)]);
  return found && found->is_stopped();
}

std::vector<int> Peers::find_dead() const {
  std::vector<int> dead = dead_from_start_;
  std::vector<pollfd> polled = descriptors_;
  if (poll(polled.data(), polled.size(), 0) <= 0) return dead;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (polled[i].revents & POLLIN) dead.push_back(ranks_[i]);
  }
  return dead;
}

}  // namespace torsh::shm
