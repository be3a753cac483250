// Memory for what is received. Large blocks are used again, since their pages are present then.
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

  // So many bytes, aligned to cache lines and not initialised; given back when the last owner lets
  // go of it, on any thread. Throws std::bad_alloc.
  BlockPtr take(std::size_t bytes);

 private:
  std::byte* reused(std::size_t bytes);
  void give_back(std::byte* block, std::size_t bytes);

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
  std::size_t kept_ = 0;                                 // bytes
};

}  // namespace torsh::rpc
