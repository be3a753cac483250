// What happened once and is not to happen again, each played as it was.
#pragma once

#include <vector>

namespace torsh::test {

struct Scene {
  const char* name;
  void (*play)();  // throws Wrong, or what the group throws
};

const std::vector<Scene>& scenes();

}  // namespace torsh::test
