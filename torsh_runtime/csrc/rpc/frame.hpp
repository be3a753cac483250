// A frame on a connection of remote calls: a header, a table of the buffers that belong to the pickle, the pickle,
// and those buffers that the peer does not read from this process's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/siphash.hpp"

namespace torsh::rpc {

enum class Kind : std::uint8_t {
  request = 1,
  result,
  error,
  taken,    // a result's buffers have been read from the receiver's memory, or a large request has been begun
  goodbye,  // the sender leaves as it should
};

// In the byte order of the machine: a peer of another order is told by the magic number.
struct FrameHeader {
  static constexpr std::uint32_t valid_magic = 0x3152534D;  // with the version of the layout
  static constexpr std::uint64_t max_bytes = std::uint64_t{1} << 46;
  static constexpr std::uint32_t max_buffers = 1 << 20;

  std::uint32_t magic = valid_magic;
  Kind kind{};
  std::uint8_t of_request = 0;  // what is taken
  std::uint8_t unused[2] = {};
  std::uint32_t buffers = 0;
  std::uint32_t padding = 0;
  std::uint64_t call = 0;    // chosen by the caller
  std::uint64_t number = 0;  // counts the pickles that go this way
  std::uint64_t bytes = 0;   // of the pickle
  double left = 0;           // seconds until the caller's deadline
  SipTag mac{};             // see frame_mac.hpp

  bool is_valid() const {
    return magic == valid_magic && kind >= Kind::request && kind <= Kind::goodbye && bytes <= max_bytes && buffers <= max_buffers;
  }
  bool has_pickle() const { return kind <= Kind::error; }
};
static_assert(std::is_trivially_copyable_v<FrameHeader> && sizeof(FrameHeader) == 64);

struct TableEntry {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // in the sender's memory; 0: its bytes follow the pickle
};
static_assert(sizeof(TableEntry) == 16);

}  // namespace torsh::rpc
