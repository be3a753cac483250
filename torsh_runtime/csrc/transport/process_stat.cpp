#include "transport/process_stat.hpp"

#include <unistd.h>

#include <array>

#include "transport/small_files.hpp"

namespace torsh {
namespace {

constexpr unsigned pf_exiting = 4;  // of the kernel's flags
// Which fields after the name these are.
constexpr std::size_t state = 0, parent = 1, flags = 6, threads = 17, started = 19;

}  // namespace

// The name is in parentheses and may hold any others.
std::optional<ProcessStat> read_stat(const std::string& directory) {
  const std::optional<std::string> text = read_file("/proc/" + directory + "/stat");
  if (!text) return std::nullopt;
  const std::size_t begin = text->find('('), end = text->rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  const std::vector<std::string_view> fields = words(std::string_view(*text).substr(end + 1));
  if (fields.size() <= started) return std::nullopt;
  const auto of_parent = leading<int>(fields[parent]), of_threads = leading<int>(fields[threads]);
  const auto all_flags = leading<unsigned>(fields[flags]);
  const auto when = leading<std::uint64_t>(fields[started]);
  if (!of_parent || !of_threads || !all_flags || !when) return std::nullopt;
  return ProcessStat{text->substr(begin + 1, end - begin - 1), fields[state].front(), *of_parent,
                     (*all_flags & pf_exiting) != 0, *of_threads, *when};
}

std::optional<ProcessStat> read_stat(int pid) {
  std::array<char, 16> self{};  // zeros: readlink ends no text
  const bool is_ours = readlink("/proc/self", self.data(), self.size() - 1) > 0 && std::to_string(getpid()) == self.data();
  return is_ours ? read_stat(std::to_string(pid)) : std::nullopt;
}

}  // namespace torsh
