#include "transport/shm/peers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace torsh::shm {

Peers::Peers(const std::vector<int>& pids) : pids_(pids) {
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] <= 0 || pids[rank] == getpid()) continue;
    const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pids[rank], 0));
    if (descriptor >= 0) {
      descriptors_.push_back({descriptor, POLLIN, 0});
      ranks_.push_back(static_cast<int>(rank));
    } else if (errno == ESRCH) {
      dead_from_start_.push_back(static_cast<int>(rank));
    } else {
      const int error = errno;
      for (const pollfd& opened : descriptors_) close(opened.fd);
      throw std::system_error(error, std::generic_category(), error == ENOSYS ? "pidfd_open needs Linux 5.3" : "pidfd_open");
    }
  }
}

Peers::~Peers() {
  for (const pollfd& entry : descriptors_) close(entry.fd);
}

// The state stands behind the name, which is in parentheses and may hold any others.
bool Peers::is_stopped(int rank) const {
  std::ifstream file("/proc/" + std::to_string(pids_[static_cast<std::size_t>(rank)]) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t name = text.rfind(')');
  if (name == std::string::npos || name + 2 >= text.size()) return false;
  return text[name + 2] == 'T' || text[name + 2] == 't';
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
