// Which processors share their last cache.
#pragma once

#include <sched.h>

#include <cstdint>
#include <string>

namespace torsh::shm {

// A number of the last cache that all of these processors have in common, and nobody else's is; 0 if they have
// none in common, or nothing is known. Files are looked for below `root`.
std::uint32_t shared_cache(const cpu_set_t& cpus, const std::string& root = "");

}  // namespace torsh::shm
