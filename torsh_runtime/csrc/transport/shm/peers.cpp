#include "transport/shm/peers.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace torsh::shm {

Peers::Peers(const std::vector<int>& pids) {
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

void Peers::find_dead(std::vector<int>& dead) {
  dead.insert(dead.end(), dead_from_start_.begin(), dead_from_start_.end());
  if (poll(descriptors_.data(), descriptors_.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < descriptors_.size(); ++i) {
    if (descriptors_[i].revents & POLLIN) dead.push_back(ranks_[i]);
  }
}

}  // namespace torsh::shm
