// What goes over a link: a header and then as many bytes as it says, without padding. Large
// messages are split over the lanes of the link: the first part follows the header on lane 0, the
// others go over lanes 1, 2, … with nothing in between, as the headers come in order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/pages.hpp"
#include "common/types.hpp"

namespace torsh {

// Messages of the user, of the collectives and of Python objects never meet.
enum class Purpose : std::uint8_t { user, collective, object };

// In the byte order of the machine: a rank of another order is told by the magic number.
struct Header {
  static constexpr std::uint32_t valid_magic = 0x3248534D;  // with the version of the layout
  static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 46;
  static constexpr std::size_t max_lanes = 255;

  std::uint32_t magic = valid_magic;
  Purpose purpose{};
  std::uint8_t lanes = 1;  // that it is split over
  std::uint16_t unused = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t seen = 0;  // of a collective's: who has entered it, see Attendance; 0 is unknown
  Call call{};

  // Whether a rank of this library can have sent it over a link of so many lanes.
  bool is_valid(std::size_t link_lanes) const {
    if (magic != valid_magic || purpose > Purpose::object || bytes > max_bytes) return false;
    if (lanes != 1 && lanes != link_lanes) return false;
    if (call.kind > OpKind::recv || static_cast<std::size_t>(call.dtype) >= num_dtypes) return false;
    if (static_cast<std::size_t>(call.op) >= num_reduce_ops) return false;
    return purpose == Purpose::collective || bytes == call.count * size_of(call.dtype);
  }
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 96);

// The part of a message that goes over one of its lanes.
struct Part {
  std::size_t offset, bytes;
};
inline Part part_of(std::size_t bytes, std::size_t lane, std::size_t lanes) {
  const std::size_t share = round_up(bytes / lanes, least_page);
  const std::size_t offset = std::min(lane * share, bytes);
  return {offset, lane + 1 == lanes ? bytes - offset : std::min(share, bytes - offset)};
}

}  // namespace torsh
