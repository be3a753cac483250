// The proof that the peer has sent a pickle there and then: a tag over its header, which has its number on the
// connection, the table of its buffers, and a tag of the pickle itself.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "common/siphash.hpp"
#include "rpc/frame.hpp"

namespace torsh::rpc {

inline SipTag tag_of(const SipKey& key, std::span<const std::byte> pickle) { return SipHash(key).tag(pickle); }

inline SipTag seal_of(const SipKey& key, FrameHeader header, std::span<const TableEntry> table, const SipTag& pickle) {
  header.seal = {};
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
