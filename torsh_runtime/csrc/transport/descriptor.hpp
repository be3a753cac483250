// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace torsh {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  // -1 is none.
  int number() const { return number_; }
  // Leaves it open: it is the caller's.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace torsh
