// Courses: all that a group can be asked to do, one after the other, or at random.
#pragma once

#include "faults.hpp"

namespace torsh::test {

// Every collective, with sizes on both sides of every threshold and every dtype and reduction, on
// groups of every kind.
std::vector<Course> collectives();
// Messages of all kinds on groups of every kind.
std::vector<Course> messages();
// Every fault in every collective, within a node and between nodes.
std::vector<Course> faults();
// One of a seed's own.
Course random_course(std::uint64_t seed);

}  // namespace torsh::test
