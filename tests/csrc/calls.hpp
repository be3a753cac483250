// Remote calls between threads of one process.
#pragma once

#include <vector>

#include "scenes.hpp"

namespace torsh::test {

std::vector<Scene> call_scenes();

}  // namespace torsh::test
