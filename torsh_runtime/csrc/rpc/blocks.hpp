// Memory for received data. Large blocks are reused, since their pages are allocated already.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace torsh::rpc {

using BlockPtr = std::shared_ptr<std::byte>;

class Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  ~Blocks();

  // Returns `bytes` of memory, aligned to cache lines and not initialised. It is freed when its last owner releases
  // it, on any thread. Throws std::bad_alloc.
  BlockPtr take(std::size_t bytes);

 private:
  std::byte* reused(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
  std::size_t kept_ = 0;                                 // bytes
};

}  // namespace torsh::rpc
