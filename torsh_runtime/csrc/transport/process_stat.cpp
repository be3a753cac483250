#include "transport/process_stat.hpp"

#include <unistd.h>

#include <array>

#include "transport/small_files.hpp"

namespace torsh {
namespace {

constexpr unsigned pf_exiting = 4;  // of the kernel's flags
// Which fields after the name these are.
constexpr std::size_t state = 0, parent = 1, flags = 6, threads = 17;

}  // namespace

// The name is in parentheses and may hold any others.
std::optional<ProcessStat> read_stat(const std::string& directory) {
  const std::optional<std::string> text = read_file("/proc/" + directory + "/stat");
  if (!text) return std::nullopt;
  const std::size_t begin = text->find('('), end = text->rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  const std::vector<std::string_view> fields = words(std::string_view(*text).substr(end + 1));
  if (fields.size() <= threads) return std::nullopt;
  const auto number = [&fields](std::size_t field) { return leading<long>(fields[field]).value_or(0); };
  const bool exiting = (number(flags) & pf_exiting) != 0;
  return ProcessStat{text->substr(begin + 1, end - begin - 1), fields[state].front(), static_cast<int>(number(parent)), exiting,
                     static_cast<int>(number(threads))};
}

std::optional<ProcessStat> read_stat(int pid) {
  std::array<char, 16> self{};  // zeros: readlink ends no text
  const bool is_ours = readlink("/proc/self", self.data(), self.size() - 1) > 0 && std::to_string(getpid()) == self.data();
  return is_ours ? read_stat(std::to_string(pid)) : std::nullopt;
}

}  // namespace torsh
