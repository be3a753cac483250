#include "transport/shm/peers.hpp"

#include <unistd.h>

#include <algorithm>

#include "transport/process_stat.hpp"

namespace torsh::shm {

Peers::Peers(const std::vector<int>& pids) : pids_(pids) {
  for (std::size_t rank = 0; rank < pids.size(); ++rank) {
    if (pids[rank] <= 0 || pids[rank] == getpid()) continue;
    if (auto process = Process::find(pids[rank])) {
      descriptors_.push_back({process->descriptor(), POLLIN, 0});
      watched_.push_back(std::move(process));
      ranks_.push_back(static_cast<int>(rank));
    } else {
      dead_from_start_.push_back(static_cast<int>(rank));
    }
  }
}

std::shared_ptr<Process> Peers::process(int rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return nullptr;
  return watched_[static_cast<std::size_t>(found - ranks_.begin())];
}

bool Peers::has_ended(int rank) const {
  if (std::find(dead_from_start_.begin(), dead_from_start_.end(), rank) != dead_from_start_.end()) return true;
  const auto found = process(rank);
  return found && found->has_ended();
}

bool Peers::is_ending(int rank) const {
  const auto found = process(rank);
  return found && found->is_ending();
}

bool Peers::is_stopped(int rank) const {
  const auto found = read_stat(pids_[static_cast<std::size_t>(rank)]);
  return found && found->is_stopped();
}

std::vector<int> Peers::find_dead() const {
  std::vector<int> dead = dead_from_start_;
  std::vector<pollfd> polled = descriptors_;
  const bool any_ended = poll(polled.data(), polled.size(), 0) > 0;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (watched_[i]->was_ending() || (any_ended && (polled[i].revents & POLLIN))) dead.push_back(ranks_[i]);
  }
  return dead;
}

}  // namespace torsh::shm
