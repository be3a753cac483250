#include "transport/shm/reach.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <random>
#include <string>

namespace torsh::shm {
namespace {

// So much at a time: what one call has looked up of the peer's pages is then still in the cache.
constexpr std::size_t piece_bytes = 256 << 10;
constexpr std::size_t room_bytes = 512 << 10;

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

bool transfer(Transfer run, pid_t pid, const std::byte* here, std::uint64_t there, std::size_t bytes) {
  std::size_t at = 0;
  while (at < bytes) {
    const std::size_t length = std::min(bytes - at, piece_bytes);
    const iovec own{const_cast<std::byte*>(here) + at, length};
    const iovec other{reinterpret_cast<void*>(there + at), length};
    const ssize_t done = run(pid, &own, 1, &other, 1, 0);
    if (done <= 0) return false;
    at += static_cast<std::size_t>(done);
  }
  return true;
}

std::uint64_t random_word() {
  std::random_device source;
  return static_cast<std::uint64_t>(source()) << 32 | source();
}

}  // namespace

Reach::Reach(int rank, const std::vector<int>& pids) : rank_(rank), pids_(pids), word_(random_word()) {}

Reach::Probe Reach::probe() const { return {reinterpret_cast<std::uint64_t>(&word_), word_}; }

bool Reach::finds(int peer, const Probe& probe) {
  std::uint64_t found = 0;
  return read(peer, reinterpret_cast<std::byte*>(&found), probe.address, sizeof found) && found == probe.word;
}

// The first and the last byte stand for all: a buffer lies in one mapping.
bool Reach::shows(const std::byte* data, std::size_t bytes) {
  if (bytes == 0) return true;
  Shown& known = shown_[reinterpret_cast<std::uintptr_t>(data) / 64 % shown_.size()];
  if (known.data == data && known.bytes == bytes) return true;
  std::byte found;
  const std::uint64_t first = reinterpret_cast<std::uint64_t>(data);
  if (!read(rank_, &found, first, 1) || !read(rank_, &found, first + bytes - 1, 1)) return false;
  known = {data, bytes};
  return true;
}

bool Reach::read(int peer, std::byte* to, std::uint64_t from, std::size_t bytes) {
  const pid_t pid = pids_[static_cast<std::size_t>(peer)];
  if (pid <= 0) return errno = EPERM, false;
  return transfer(process_vm_readv, pid, to, from, bytes);
}

bool Reach::write(int peer, std::uint64_t to, const std::byte* from, std::size_t bytes) {
  const pid_t pid = pids_[static_cast<std::size_t>(peer)];
  if (pid <= 0) return errno = EPERM, false;
  return transfer(process_vm_writev, pid, from, to, bytes);
}

std::span<std::byte> Reach::room() {
  if (room_.empty()) room_.resize(room_bytes / sizeof(Line));
  return {room_.data()->bytes, room_bytes};
}

bool Reach::is_stopped(int peer) const {
  std::ifstream file("/proc/" + std::to_string(pids_[static_cast<std::size_t>(peer)]) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(") ") + 2;  // a process's name may hold anything
  return state < text.size() && (text[state] == 'T' || text[state] == 't');
}

}  // namespace torsh::shm
