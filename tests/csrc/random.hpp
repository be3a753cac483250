// Numbers that depend on a seed alone, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace torsh::test {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
constexpr std::uint64_t mixed(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ value >> 27) * 0x94D049BB133111EBull;
  return value ^ value >> 31;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mixed(seed)) {}

  std::uint64_t next() { return mixed(state_++); }
  // From 0 to limit - 1.
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }
  bool one_in(std::size_t times) { return below(times) == 0; }
  template <typename T>
  T among(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace torsh::test
