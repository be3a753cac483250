#include "transport/shm/cross_memory.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <random>

namespace torsh::shm {
namespace {

std::uint64_t random_word() {
  std::random_device source;
  return static_cast<std::uint64_t>(source()) << 32 | source();
}

}  // namespace

bool read_memory(int pid, std::byte* to, std::uint64_t from, std::size_t bytes) {
  if (pid <= 0) return errno = EPERM, false;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t length = std::min(bytes - at, CrossMemory::piece_bytes);
    const iovec own{to + at, length};
    const iovec other{reinterpret_cast<void*>(from + at), length};
    const ssize_t done = process_vm_readv(pid, &own, 1, &other, 1, 0);
    if (done <= 0) return false;
    at += static_cast<std::size_t>(done);
  }
  return true;
}

CrossMemory::CrossMemory(int rank, const std::vector<int>& pids) : rank_(rank), pids_(pids), word_(random_word()) {}

CrossMemory::Probe CrossMemory::probe() const { return {reinterpret_cast<std::uint64_t>(&word_), word_}; }

bool CrossMemory::can_read(int peer, const Probe& probe) {
  std::uint64_t found = 0;
  return read(peer, reinterpret_cast<std::byte*>(&found), probe.address, sizeof found) && found == probe.word;
}

// The first and the last byte stand for all: a buffer lies in one mapping.
bool CrossMemory::is_readable(const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return true;
  Shown& known = shown_[reinterpret_cast<std::uintptr_t>(data) / 64 % shown_.size()];
  if (known.data == data && known.bytes == bytes) return true;
  std::byte found;
  const std::uint64_t first = reinterpret_cast<std::uint64_t>(data);
  if (!read(rank_, &found, first, 1) || !read(rank_, &found, first + bytes - 1, 1)) return false;
  known = {data, bytes};
  return true;
}

bool CrossMemory::read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes) {
  return read_memory(pids_[static_cast<std::size_t>(peer)], to, from, bytes);
}

std::size_t CrossMemory::write(int peer, const void* to, const std::byte* from) {
  const pid_t pid = pids_[static_cast<std::size_t>(peer)];
  if (pid <= 0) return 0;
  const iovec own{const_cast<std::byte*>(from), piece_bytes};
  const ssize_t done = process_vm_writev(pid, &own, 1, static_cast<const iovec*>(to), 1, 0);
  return done > 0 ? static_cast<std::size_t>(done) : 0;
}

std::span<std::byte> CrossMemory::room(std::size_t bytes) {
  const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
  if (room_.size() < lines) room_.resize(lines);
  return {room_.data()->bytes, bytes};
}

}  // namespace torsh::shm
