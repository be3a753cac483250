// SipHash-2-4 with a tag of 128 bits: a message authentication code (Aumasson and Bernstein, "SipHash: a fast
// short-input PRF", 2012).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace torsh {

using SipKey = std::array<std::uint64_t, 2>;
using SipTag = std::array<std::uint64_t, 2>;

class SipHash {
 public:
  explicit SipHash(const SipKey& key)
      : v_{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d ^ 0xee, key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573} {}

  // Of all of the message.
  SipTag tag(std::span<const std::byte> message) && {
    const std::size_t whole = message.size() / 8 * 8;
    for (std::size_t at = 0; at < whole; at += 8) {
      std::uint64_t word;
      std::memcpy(&word, message.data() + at, sizeof word);
      absorb(little(word));
    }
    std::uint64_t last = 0;
    if (whole != message.size()) std::memcpy(&last, message.data() + whole, message.size() - whole);
    absorb(little(last) | static_cast<std::uint64_t>(message.size()) << 56);
    v_[2] ^= 0xee;
    SipTag result;
    result[0] = finished();
    v_[1] ^= 0xdd;
    result[1] = finished();
    return result;
  }

 private:
  static std::uint64_t little(std::uint64_t word) {
    if constexpr (std::endian::native == std::endian::little) return word;
    return __builtin_bswap64(word);
  }

  void absorb(std::uint64_t word) {
    v_[3] ^= word;
    round();
    round();
    v_[0] ^= word;
  }

  std::uint64_t finished() {
    for (int i = 0; i < 4; ++i) round();
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

  void round() {
    v_[0] += v_[1];
    v_[1] = std::rotl(v_[1], 13) ^ v_[0];
    v_[0] = std::rotl(v_[0], 32);
    v_[2] += v_[3];
    v_[3] = std::rotl(v_[3], 16) ^ v_[2];
    v_[0] += v_[3];
    v_[3] = std::rotl(v_[3], 21) ^ v_[0];
    v_[2] += v_[1];
    v_[1] = std::rotl(v_[1], 17) ^ v_[2];
    v_[2] = std::rotl(v_[2], 32);
  }

  std::uint64_t v_[4];
};

}  // namespace torsh
