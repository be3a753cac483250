// Sends pieces from every rank to every other one, each of its own size: gather, scatter and all_to_all.
#pragma once

#include "common/per_rank.hpp"
#include "transport/shm/channel.hpp"

namespace torsh::in_node {

// given[q] goes to rank q's taken[r] of this rank r; empty pieces send nothing. A rank's pieces to itself must have
// equal sizes; other differences end the group with a mismatch. Of large pieces, which are copied in place, the
// receiver copies `pulled`/ranks and the sender the rest.
void exchange(shm::Channel& channel, Pieces taken, Pieces given, int pulled);

}  // namespace torsh::in_node
