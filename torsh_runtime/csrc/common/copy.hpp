// memcpy for buffers that may be empty, and then nowhere.
#pragma once

#include <cstddef>
#include <cstring>

namespace torsh {

inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace torsh
