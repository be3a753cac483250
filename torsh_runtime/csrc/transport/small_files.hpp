// The kernel's small files, and what stands in them.
//
// Without iostreams: where a compiler links libstdc++ into the module, their locales mix with those of
// the libstdc++ that the process has, and the first number that is read jumps to nowhere.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace torsh {

// None if it cannot be read: a process may end, and its files with it, at any moment.
std::optional<std::string> read_file(const std::string& path);

// What is between the separators.
std::vector<std::string_view> split(std::string_view text, char separator);
// What is between spaces, tabs and ends of lines.
std::vector<std::string_view> words(std::string_view text);

// The number that the text begins with.
template <class Number>
std::optional<Number> leading(std::string_view text) {
  Number found{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), found);
  if (result.ec != std::errc{}) return std::nullopt;
  return found;
}

}  // namespace torsh
