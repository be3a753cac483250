// Copying what does not fit the caches anyway.
#pragma once

#include <cstddef>

namespace torsh {

// memcpy that writes past the caches, where the processor can: without first reading the memory that
// is written, and without driving out what the caches hold.
void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace torsh
