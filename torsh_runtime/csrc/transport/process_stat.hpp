// What the kernel tells of processes and threads (proc(5), "stat").
#pragma once

#include <optional>
#include <string>

namespace torsh {

struct ProcessStat {
  std::string name;
  char state;
  int parent;
  bool exiting;  // it runs nothing of its program any more
  int threads;   // of its process

  bool is_stopped() const { return state == 'T' || state == 't'; }
};

// `directory` is below /proc. None if there is nothing of that name, or no /proc.
std::optional<ProcessStat> read_stat(const std::string& directory);
inline std::optional<ProcessStat> read_stat(int pid) { return read_stat(std::to_string(pid)); }

}  // namespace torsh
