#include "transport/process_stat.hpp"

#include <fstream>
#include <iterator>
#include <sstream>

namespace torsh {
namespace {

constexpr unsigned pf_exiting = 4;  // of the kernel's flags

}  // namespace

// The name is in parentheses and may hold any others.
std::optional<ProcessStat> read_stat(const std::string& directory) {
  std::ifstream file("/proc/" + directory + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
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

}  // namespace torsh
