// What ranks note of their operations, which must be true.
#pragma once

#include <memory>
#include <vector>

#include "common/recorder.hpp"
#include "scenes.hpp"

namespace torsh::test {

using Recordings = std::vector<std::unique_ptr<Recording>>;  // by rank

// Throws Wrong if a rank says that all had entered an operation, or that a message had been sent, before that was so,
// or that something is still under way. The ranks are over.
void check(const Recordings& recordings);

std::vector<Scene> recorded_scenes();

}  // namespace torsh::test
