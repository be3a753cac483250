// Versions that a writer publishes in slots, and readers hold.
#pragma once

#include <vector>

#include "scenes.hpp"

namespace torsh::test {

std::vector<Scene> slot_scenes();

}  // namespace torsh::test
