// What the ranks of different nodes tell each other about the group itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "common/failure.hpp"

namespace torsh::tcp {

enum class Notice : std::uint32_t { abort = 1, goodbye, roll_call, answer };

// In the byte order of the machine, as the messages. Behind an abort follows its account.
struct ControlHeader {
  static constexpr std::uint32_t valid_magic = 0x3143534D;

  std::uint32_t magic = valid_magic;
  Notice notice{};
  std::uint32_t call = 0;   // which roll call an answer is to
  std::uint32_t bytes = 0;  // that follow
  std::uint64_t sequence = 0;
};
static_assert(std::is_trivially_copyable_v<ControlHeader> && sizeof(ControlHeader) == 24);

// The account of a failure as bytes, and back; none if that is no account in a group of so many ranks.
std::vector<std::byte> write_account(const Failure& failure);
std::optional<Failure> read_account(std::span<const std::byte> bytes, int ranks);
// No account in such a group is longer.
std::size_t account_limit(int ranks);

}  // namespace torsh::tcp
