#include "transport/shm/peers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
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
