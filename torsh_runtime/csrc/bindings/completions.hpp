// Collects operations that have ended, for the thread that runs callbacks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"

namespace torsh::python {

// All may be called by any thread, several at a time.
class Completions {
 public:
  // Adds the number by which the caller knows an operation. Needs no GIL.
  void add(std::uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(number);
    changed_.notify_one();
  }

  // Returns the numbers added since the last call; waits up to `seconds` if there is none.
  std::vector<std::uint64_t> wait(double seconds) {
    const WithoutGil unlocked;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return !ended_.empty(); });
    return std::exchange(ended_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> ended_;
};

}  // namespace torsh::python
