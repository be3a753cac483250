// The message authentication code of a frame with a pickle. It covers the header, which has the frame's number on the
// connection, the table of its buffers, and a tag of the pickle.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "common/siphash.hpp"
#include "rpc/frame.hpp"

namespace torsh::rpc {

inline SipTag tag_of(const SipKey& key, std::span<const std::byte> pickle) { return SipHash(key).tag(pickle); }

inline SipTag mac_of(const SipKey& key, FrameHeader header, std::span<const TableEntry> table, const SipTag& pickle) {
  header.mac = {};
  const auto bytes = std::as_bytes(table);
  if (bytes.empty()) {
    std::array<std::byte, sizeof header + sizeof pickle> all;
    std::memcpy(all.data(), &header, sizeof header);
    std::memcpy(all.data() + sizeof header, &pickle, sizeof pickle);
    return SipHash(key).tag(all);
  }
  std::vector<std::byte> all(sizeof header + sizeof pickle + bytes.size());
  std::memcpy(all.data(), &header, sizeof header);
  std::memcpy(all.data() + sizeof header, &pickle, sizeof pickle);
  std::memcpy(all.data() + sizeof header + sizeof pickle, bytes.data(), bytes.size());
  return SipHash(key).tag(all);
}

}  // namespace torsh::rpc
