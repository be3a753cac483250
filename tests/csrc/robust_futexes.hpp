// How processes learn of each other's death before it is over.
#pragma once

#include <vector>

#include "scenes.hpp"

namespace torsh::test {

std::vector<Scene> robust_futex_scenes();

}  // namespace torsh::test
