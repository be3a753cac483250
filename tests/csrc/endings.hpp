// What is told of processes that are about to end, by the core and by the keeper.
#pragma once

#include <vector>

#include "scenes.hpp"

namespace torsh::test {

std::vector<Scene> endings_scenes();

}  // namespace torsh::test
