// What the kernel tells of processes and threads (proc(5), "stat").
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torsh {

struct ProcessStat {
  std::string name;
  char state;
  int parent;
  bool exiting;  // it runs nothing of its program any more
  int threads;   // of its process
  std::uint64_t started;  // in ticks since the machine was started

  bool is_stopped() const { return state == 'T' || state == 't'; }
};

// `directory` is below /proc. None if there is nothing of that name, or no /proc.
std::optional<ProcessStat> read_stat(const std::string& directory);
// None as well if this /proc is another PID namespace's, where the number is somebody else's.
std::optional<ProcessStat> read_stat(int pid);

}  // namespace torsh
