// How many cache lines collectives fetch from other ranks' processors: what they cost on a machine with
// many processors, as far as it can be counted without one.
#pragma once

namespace torsh::test {

// Throws Wrong if a rank fetches more of them than its algorithm should.
void check_lines();
// For 2 to 192 ranks, as a table.
void print_lines();

}  // namespace torsh::test
