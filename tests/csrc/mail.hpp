// Many messages at a time, between all ranks.
#pragma once

#include <cstdint>

#include "world.hpp"

namespace torsh::test {

// What all ranks send each other at the same time; all are given the same.
struct Mail {
  std::size_t messages = 0;  // of all ranks together
  std::size_t largest = 0;   // bytes of one
  bool any_source = false;   // receivers do not say from whom
  bool unattended = false;   // nobody waits for them: they go on in the background
  std::uint64_t seed = 0;
  std::uint64_t number = 0;  // of this exchange, of the group's: its tags are its own
};

// Posts this rank's sends and receives in an order of its own, and waits for them in another. Throws
// Wrong if something else comes than was sent, or in another order, and what the group throws.
void exchange(Member& member, const Mail& mail, double timeout);

}  // namespace torsh::test
