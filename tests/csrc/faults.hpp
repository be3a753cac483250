// What may befall a group, and that all its ranks learn of it.
#pragma once

#include <mutex>

#include "mail.hpp"
#include "steps.hpp"

namespace torsh::test {

enum class Fault { none, abort, leave, mismatch, absence, interrupt, death };
const char* name(Fault fault);

// What all ranks of a group do, one after the other, and what befalls one of them after so many
// steps. `mail` is exchanged after every second step, if it has messages.
struct Course {
  Shape shape{};
  std::vector<Step> steps{};
  Mail mail{};
  bool in_background = false;  // steps are begun all at once and waited for later
  Fault fault{};
  int victim = 0;
  std::size_t when = 0;

  std::string words() const;
};

// Runs it. Throws Wrong if a result is wrong, if a rank does not learn of the fault, learns of another
// one than the others, or finds its buffers written to after that.
void run(const Course& course);

}  // namespace torsh::test
