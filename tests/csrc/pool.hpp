// How ranks meet for further groups in the memory that they share.
#pragma once

#include <vector>

#include "scenes.hpp"

namespace torsh::test {

std::vector<Scene> pool_scenes();

}  // namespace torsh::test
