// A file that several ranks of this process map is mapped once, so that all of them use it at the
// same addresses: a sanitizer of threads then sees what happens between them, and whether their
// flags order it. The linker sends the core's calls here (--wrap).
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <map>
#include <mutex>

extern "C" {
void* __real_mmap(void* address, std::size_t length, int protection, int flags, int file, off_t offset);
int __real_munmap(void* address, std::size_t length);
void* __wrap_mmap(void* address, std::size_t length, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void* address, std::size_t length);
}

namespace {

struct Mapping {
  void* address;
  int users;
};

std::mutex mutex;
std::map<ino_t, Mapping> mappings;

}  // namespace

void* __wrap_mmap(void* address, std::size_t length, int protection, int flags, int file, off_t offset) {
  struct stat status {};
  const bool is_shared = file >= 0 && (flags & MAP_SHARED) != 0 && fstat(file, &status) == 0;
  if (!is_shared) return __real_mmap(address, length, protection, flags, file, offset);
  const std::lock_guard<std::mutex> alone(mutex);
  const auto known = mappings.find(status.st_ino);
  if (known != mappings.end()) {
    ++known->second.users;
    return known->second.address;
  }
  void* mapped = __real_mmap(address, length, protection, flags, file, offset);
  if (mapped != MAP_FAILED) mappings[status.st_ino] = {mapped, 1};
  return mapped;
}

int __wrap_munmap(void* address, std::size_t length) {
  const std::lock_guard<std::mutex> alone(mutex);
  for (auto at = mappings.begin(); at != mappings.end(); ++at) {
    if (at->second.address != address) continue;
    if (--at->second.users != 0) return 0;
    mappings.erase(at);
    break;
  }
  return __real_munmap(address, length);
}
