#include "transport/process_stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <sstream>

#include "transport/descriptor.hpp"

namespace torsh {
namespace {

constexpr unsigned pf_exiting = 4;  // of the kernel's flags

// "" if it cannot be read: a process may end, and its files with it, at any moment.
std::string read_small(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 1024> text;  // more than there are fields
  const ssize_t bytes = file.number() < 0 ? -1 : read(file.number(), text.data(), text.size());
  return bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "";
}

}  // namespace

// The name is in parentheses and may hold any others.
std::optional<ProcessStat> read_stat(const std::string& directory) {
  const std::string text = read_small("/proc/" + directory + "/stat");
  const std::size_t begin = text.find('('), end = text.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  ProcessStat found{};
  unsigned flags = 0;
  std::string skipped;
  std::istringstream fields(text.substr(end + 1));
  fields >> found.state >> found.parent >> skipped >> skipped >> skipped >> skipped >> flags;
  for (int field = 10; field < 20; ++field) fields >> skipped;
  if (!(fields >> found.threads)) return std::nullopt;
  found.name = text.substr(begin + 1, end - begin - 1);
  found.exiting = (flags & pf_exiting) != 0;
  return found;
}

std::optional<ProcessStat> read_stat(int pid) {
  std::array<char, 16> self{};  // zeros: readlink ends no text
  const bool is_ours = readlink("/proc/self", self.data(), self.size() - 1) > 0 && std::to_string(getpid()) == self.data();
  return is_ours ? read_stat(std::to_string(pid)) : std::nullopt;
}

}  // namespace torsh
